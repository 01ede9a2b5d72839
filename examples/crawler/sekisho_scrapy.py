"""Asks Sekisho before each request of a spider, and says what became of it. Needs nothing but Scrapy.

    DOWNLOADER_MIDDLEWARES = {"sekisho_scrapy.SekishoMiddleware": 950}

950 is next to the wire: what the cache answers is not asked for, and each redirect, retry and robots.txt is.
"""

import asyncio
import json
import logging
import os
import time
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from scrapy.exceptions import CannotResolveHostError, DownloadConnectionRefusedError, IgnoreRequest
from twisted.internet.error import ConnectError

NOT_SENT = (CannotResolveHostError, DownloadConnectionRefusedError, ConnectError)
PERMIT = "sekisho_permit"
log = logging.getLogger(__name__)


class SekishoMiddleware:
    def __init__(self, crawler):
        self.url = crawler.settings.get("SEKISHO_URL", "http://127.0.0.1:8001")
        self.stats = crawler.stats
        self.headers = {"Content-Type": "application/json"}
        if token := os.environ.get("SEKISHO_API_TOKEN"):
            self.headers["Authorization"] = f"Bearer {token}"

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def process_request(self, request):
        if not request.url.startswith(("http:", "https:")):
            return
        ask = {"url": request.url, "page": request.meta.get("sekisho_page", not request.url.endswith("/robots.txt"))}
        while not (turn := await self.post("acquire", ask))["allowed"]:
            if turn["reason"] != "domain_busy":
                self.stats.inc_value(f"sekisho/{turn['reason']}")
                log.info("%s until %s: %s", turn["reason"], turn["retry_at"], request.url)
                raise IgnoreRequest(turn["reason"])
            # `retry_at` is when it is free at the latest; whoever asks it now is mostly done sooner.
            await asyncio.sleep(min(max((turn["retry_at"] or 0) / 1000 - time.time(), 0.05), 0.5))
        request.meta[PERMIT] = turn["permit"]
        await asyncio.sleep(turn["wait_ms"] / 1000)

    async def process_response(self, request, response):
        retry_after = response.headers.get("Retry-After")
        await self.settle(request, response.status, retry_after and retry_after.decode("latin-1"))
        return response

    async def process_exception(self, request, exception):
        await self.settle(request, "not_sent" if isinstance(exception, NOT_SENT) else "no_answer")

    async def settle(self, request, status, retry_after=None):
        # Popped, for a retry is made of this request; without one, nobody was asked.
        if not (permit := request.meta.pop(PERMIT, None)):
            return
        try:
            await self.post("settle", {"permit": permit, "status": status, "retry_after": retry_after})
        except (OSError, ValueError) as error:
            log.warning("not settled, it stays charged: %s: %s", request.url, error)

    async def post(self, call, body):
        return await asyncio.to_thread(self.send, f"{self.url}/v1/outbound/{call}", json.dumps(body).encode())

    def send(self, url, body):
        try:
            with build_opener(ProxyHandler({})).open(Request(url, body, self.headers), timeout=30) as answer:
                return json.load(answer)
        except HTTPError as error:
            # Scrapy retries an OSError later; what was asked wrongly stays wrong.
            kind = OSError if error.code >= 500 else ValueError
            raise kind(f"Sekisho says {error.code}: {error.read().decode()}") from None
