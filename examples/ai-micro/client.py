"""What the services of ai-micro do with Redis, and go on doing beside Sekisho: sessions, blacklists, profiles, limits.

    pip install -r requirements.txt
    python client.py redis://127.0.0.1:6379 save_session '"user-123"' '"sess-abc"' '{"access_token": "…"}'
    python client.py redis://127.0.0.1:6379 is_blacklisted '"jti-1"' '"access"'

Arguments are JSON, and so is what is printed. SETEX is what old services send, whatever newer libraries say of it.
"""

import base64
import hashlib
import hmac
import json
import sys
from datetime import datetime, timedelta, timezone
from typing import Any, Optional

import redis

SESSION_TTL = 3600
ACCESS_TTL = 900
PROFILE_TTL = 300
HOUR = 3600


def utcnow() -> datetime:
    """Naive, as `datetime.utcnow()` was: what is stored has no zone, and means UTC."""
    return datetime.now(timezone.utc).replace(tzinfo=None)


def decode_token(token: str) -> dict:
    """The claims of a JWT. Whoever calls this has verified it before."""
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def encode_token(claims: dict, secret: str) -> str:
    """What the auth service issues: a JWT, signed with HS256."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head = part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode()) + "." + part(json.dumps(claims).encode())
    return head + "." + part(hmac.new(secret.encode(), head.encode(), hashlib.sha256).digest())


class RedisClient:
    def __init__(self, url: str):
        timeouts = {"socket_connect_timeout": 5, "socket_timeout": 5}
        self.client = redis.Redis.from_url(url, decode_responses=True, **timeouts)

    # Sessions: session:<user_id>:<sid>, JSON

    def save_session(self, user_id: str, session_id: str, data: dict, ttl: int = SESSION_TTL) -> None:
        self.client.setex(f"session:{user_id}:{session_id}", ttl, json.dumps(data))

    def get_session(self, user_id: str, session_id: str) -> Optional[dict]:
        data = self.client.get(f"session:{user_id}:{session_id}")
        return json.loads(data) if data else None

    def delete_session(self, user_id: str, session_id: str) -> None:
        self.client.delete(f"session:{user_id}:{session_id}")

    def login(self, user_id: str, session_id: str, access_token: str, refresh_token: str) -> dict:
        """Saves a session of an hour, with all that belongs into one."""
        data = {
            "user_id": user_id,
            "session_id": session_id,
            "access_token": access_token,
            "refresh_token": refresh_token,
            "created_at": utcnow().isoformat(),
            "expires_at": (utcnow() + timedelta(seconds=SESSION_TTL)).isoformat(),
            "ip_address": "192.168.1.100",
            "user_agent": "Mozilla/5.0",
        }
        self.save_session(user_id, session_id, data)
        return data

    # Blacklists: blacklist:<access|refresh>:<jti>, of which only the presence counts

    def add_to_blacklist(self, jti: str, token_type: str = "access", ttl: int = ACCESS_TTL) -> None:
        self.client.setex(f"blacklist:{token_type}:{jti}", ttl, "true")

    def is_blacklisted(self, jti: str, token_type: str = "access") -> bool:
        return self.client.exists(f"blacklist:{token_type}:{jti}") > 0

    @staticmethod
    def issue_token(user_id: str, jti: str, token_type: str, ttl: int, secret: str) -> str:
        now = int(datetime.now(timezone.utc).timestamp())
        issued = {"iss": "https://auth.ai-micro.example", "aud": "api", "iat": now, "exp": now + ttl}
        return encode_token({**issued, "sub": user_id, "jti": jti, "token_type": token_type}, secret)

    def logout_user(self, access_token: str, refresh_token: str) -> None:
        """Both tokens, each for as long as it would have lived."""
        now = int(datetime.now(timezone.utc).timestamp())
        for token_type, token in (("access", access_token), ("refresh", refresh_token)):
            claims = decode_token(token)
            if claims["exp"] > now:
                self.add_to_blacklist(claims["jti"], token_type, claims["exp"] - now)

    def is_token_blacklisted(self, token: str, token_type: str = "access") -> bool:
        return self.is_blacklisted(decode_token(token)["jti"], token_type)

    # Profiles: cache:profile:<user_id>, JSON

    def cache_profile(self, user_id: str, profile_data: dict, ttl: int = PROFILE_TTL) -> None:
        self.client.setex(f"cache:profile:{user_id}", ttl, json.dumps(profile_data))

    def get_cached_profile(self, user_id: str) -> Optional[dict]:
        data = self.client.get(f"cache:profile:{user_id}")
        return json.loads(data) if data else None

    def invalidate_cache(self, user_id: str) -> None:
        self.client.delete(f"cache:profile:{user_id}")

    # Limits: rate:<user_id>:<endpoint>:<yyyyMMddHH>, a counter

    def check_rate_limit(self, user_id: str, endpoint: str, limit: int = 100) -> bool:
        key = f"rate:{user_id}:{endpoint}:{utcnow():%Y%m%d%H}"
        count = self.client.incr(key)
        if count == 1:
            self.client.expire(key, HOUR)
        return count <= limit


def main(url: str, call: str, *arguments: str) -> Any:
    return getattr(RedisClient(url), call)(*map(json.loads, arguments))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
