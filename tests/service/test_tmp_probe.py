import time
import pytest
from starlette.testclient import TestClient
from service import create_app
from service.settings import read_settings
def test_a(tmp_path, milvus):
    for i in range(3):
        t=time.time()
        with TestClient(create_app(read_settings(home=tmp_path/"a", index_url=milvus.url)), raise_server_exceptions=False) as client:
            print("\none app", time.time()-t); t=time.time()
            print(client.get("/indexes").text)
            time.sleep(i)
            print("wait", time.time()-t); t=time.time()
        print("closed", time.time()-t); t=time.time()
def test_b(tmp_path):
    for i in range(3):
        t=time.time()
        with TestClient(create_app(read_settings(home=tmp_path/"a", index_url=str(tmp_path/"x.db"))), raise_server_exceptions=False) as client:
            print("\none app", time.time()-t); t=time.time()
            print(client.get("/indexes").text)
            client.put("/indexes/x", json={"chain":"none","width":4}, headers={"authorization": f"Bearer {client.app.state.services.keys.admin[0]}"})
            print("wait", time.time()-t); t=time.time()
        print("closed", time.time()-t); t=time.time()
