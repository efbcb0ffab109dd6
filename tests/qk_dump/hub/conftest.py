"""A Hub on this machine, and a client and a dump for it."""

from __future__ import annotations

from hub_server import hub as hub
from hubs import cache as cache
from hubs import client as client
from hubs import commit as commit
from hubs import dump as dump
