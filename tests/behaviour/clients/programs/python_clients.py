"""Clients of Python: python python_clients.py URL KEY BODY PAUSE. Each step prints a line of JSON."""

import asyncio
import http.client
import json
import sys
import time
from urllib.parse import urlsplit

import aiohttp
import httpx
import openai
import requests

URL, KEY, BODY, PAUSE = sys.argv[1:]
HEADERS = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}


def report(step, status, body):
    sys.stdout.write(json.dumps({"step": step, "status": status, "body": body}) + "\n")  # at once, also from threads
    sys.stdout.flush()


def chunks():
    yield BODY[:7].encode()
    yield BODY[7:].encode()


async def chunks_later():
    for chunk in chunks():
        await asyncio.sleep(0.01)
        yield chunk


async def use_httpx():
    """HTTP/2 is offered to servers with TLS only. HTTP/1.1 is spoken here."""
    async with httpx.AsyncClient(http2=True, headers=HEADERS, timeout=60) as client:
        for step, content in (("plain", BODY), ("chunked", chunks_later())):
            answer = await client.post(f"{URL}/embed", content=content)
            report(f"httpx {step}", answer.status_code, answer.text)
        await asyncio.sleep(float(PAUSE))
        answer = await client.post(f"{URL}/embed", content=BODY)
        report("httpx after a pause", answer.status_code, answer.text)


async def use_aiohttp():
    connector = aiohttp.TCPConnector(keepalive_timeout=100)
    async with aiohttp.ClientSession(headers=HEADERS, connector=connector) as session:

        async def embed(step, data=BODY, **more):
            async with session.post(f"{URL}/embed", data=data, **more) as answer:
                report(f"aiohttp {step}", answer.status, await answer.text())

        await embed("plain")
        await embed("chunked", chunks_later())
        await embed("gzip", compress="gzip")
        await embed("deflate", compress="deflate")
        await embed("expect", expect100=True)
        await embed("offer", headers={"connection": "Upgrade", "upgrade": "websocket"})
        await asyncio.gather(*(embed("at once") for _ in range(20)))
        await asyncio.sleep(float(PAUSE))
        await embed("after a pause")


async def use_openai():
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0) as client:

        async def embed(step):
            answer = await client.embeddings.create(input=json.loads(BODY)["inputs"], model="all-MiniLM-L6-v2")
            report(f"openai {step}", 200, json.dumps([row.embedding for row in answer.data]))

        await embed("plain")
        await asyncio.gather(*(embed("at once") for _ in range(20)))
        await asyncio.sleep(float(PAUSE))
        await embed("after a pause")


def use_http_client():
    """One connection, which fails if the server has closed it."""
    address = urlsplit(URL)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.auto_open = 0
    connection.connect()
    for step, pause in (("plain", 0), ("after a pause", float(PAUSE))):
        time.sleep(pause)
        connection.request("POST", f"{address.path}/embed", BODY, HEADERS)
        answer = connection.getresponse()
        report(f"http.client {step}", answer.status, answer.read().decode())
    connection.close()


def use_requests():
    with requests.Session() as session:
        for step, data in (("plain", BODY), ("chunked", chunks())):
            answer = session.post(f"{URL}/embed", data=data, headers=HEADERS, timeout=60)
            report(f"requests {step}", answer.status_code, answer.text)


async def use_all():
    threads = (asyncio.to_thread(use) for use in (use_http_client, use_requests))
    await asyncio.gather(use_httpx(), use_aiohttp(), use_openai(), *threads)


asyncio.run(use_all())
