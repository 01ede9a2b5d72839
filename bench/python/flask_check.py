"""Seed 002's stack: Flask with Flask-Limiter on Redis, run by gunicorn. The same two rules, by the subject in the body."""

import logging
import os

from flask import Flask, jsonify, request
from flask_limiter import Limiter

app = Flask(__name__)
logging.disable(logging.CRITICAL)
limiter = Limiter(
    key_func=lambda: request.get_json()["subject"],
    app=app,
    storage_uri=os.environ["REDIS_URL"],
    strategy="moving-window",
)


@app.post("/v1/check")
@limiter.limit("20 per minute;1000 per day")
def check():
    asked = request.get_json()
    return jsonify(allowed=True, policy=asked["policy"], subject=asked["subject"])
