"""Walks through one site, as far as its budget allows.

scrapy runspider spider.py -a start=https://www.wikipedia.org/
"""

from urllib.parse import urlsplit

import scrapy
from sekisho_scrapy import SekishoMiddleware


class Walker(scrapy.Spider):
    name = "walker"
    custom_settings = {
        "DOWNLOADER_MIDDLEWARES": {SekishoMiddleware: 950},
        "ROBOTSTXT_OBEY": True,
        # Pace and concurrency are Sekisho's.
        "DOWNLOAD_DELAY": 0,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    }

    def __init__(self, start, **kwargs):
        super().__init__(start_urls=[start], allowed_domains=[urlsplit(start).hostname], **kwargs)

    def parse(self, response):
        yield {"url": response.url, "title": response.css("title::text").get()}
        yield from response.follow_all(css="a")
