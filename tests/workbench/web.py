"""Requests to a server in another process, each for itself: no cookies, no connection kept.

One TLS context for all of them, which takes ten times as long to make as an answer to read.
"""

from __future__ import annotations

import functools
import ssl

import httpx

__all__ = ["TLS", "get", "post"]

TLS = ssl.create_default_context()
get = functools.partial(httpx.get, timeout=600.0, verify=TLS)
post = functools.partial(httpx.post, timeout=600.0, verify=TLS)
