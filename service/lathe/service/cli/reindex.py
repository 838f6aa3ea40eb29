"""`lathe index reindex` and `calibrate`: jobs of a running server on one of its indexes."""

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lathe.service.cli.options import ProgressBar, build_request, flag, load_state, take_fields
from lathe.service.errors import ConflictError, ServiceError, UnavailableError
from lathe.service.index.spec import CalibrateRequest, ReindexRequest

if TYPE_CHECKING:
    from lathe.training.encoder.text_encoder import TextEncoder

POLL_SECONDS = 0.5
"""Seconds between two questions how far the job is."""
AWAY_SECONDS = 120
"""Seconds that a server may be away, as during a restart, while its job is waited for."""


class ServerClient:
    """Requests of a command to the running server, with the admin key of its state folder.

    Args:
        url: address of the server.
    """

    def __init__(self, url: str) -> None:
        import httpx2  # which other commands do not need

        settings, home = load_state()
        key = next(iter(settings.admin_keys), None) or home.admin_key.read_text().strip()
        self.url = url
        self.client = httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60)

    def request(self, method: str, path: str, json: Any = None) -> tuple[int, Any]:
        """Send a request. Return the status and the JSON body of the answer.

        Raises:
            UnavailableError: if no server answers.
            ServiceError: if the server answers with an error.
        """
        from httpx2 import TransportError

        try:
            answer = self.client.request(method, path, json=json)
        except TransportError as error:
            raise UnavailableError(
                f"no server answers at {self.url} ({error}): start it with lathe serve, or name it with --server"
            ) from None
        body = answer.json()
        if answer.is_error:
            raise ServiceError(body["error"]["message"], status=answer.status_code)
        return answer.status_code, body

    def load_encoder(self, name: str, progress: ProgressBar) -> dict[str, Any]:
        """Let the server load an encoder that it knows, and return its description. Raises as `request`."""
        while (answer := self.request("PUT", f"/encoders/{name}"))[0] == HTTPStatus.ACCEPTED:
            progress(0.0, f"the server loads {name}")
            time.sleep(POLL_SECONDS)
        _, encoders = self.request("GET", "/encoders")
        description: dict[str, Any] = next(one for one in encoders if one["name"] == answer[1]["name"])
        return description

    def wait_for_job(self, job_id: str, progress: ProgressBar) -> dict[str, Any]:
        """Show a job's progress until it has ended, and return its result. A server that restarts is waited for.

        Raises:
            ServiceError: if the job failed or was cancelled, or no server answers for `AWAY_SECONDS`.
        """
        answered = time.monotonic()
        while True:
            try:
                _, job = self.request("GET", f"/jobs/{job_id}")
            except UnavailableError:
                if time.monotonic() - answered > AWAY_SECONDS:
                    raise
            else:
                answered = time.monotonic()
                progress(job["progress"], job["message"])
                if job["state"] == "succeeded":
                    result: dict[str, Any] = job["result"]
                    return result
                if job["state"] in ("failed", "cancelled"):
                    raise ServiceError(job["error"] or "the job was cancelled")
            time.sleep(POLL_SECONDS)


DEFAULT_SERVER = "http://127.0.0.1:8080"
Server = Annotated[str, flag("--server", "Address of the server.", envvar="LATHE_SERVER")]


@take_fields(ReindexRequest, texts=None)
def reindex(
    name: Annotated[str, typer.Argument(help="NAME of an index of the running server")],
    fields: dict[str, Any],
    server: Server = DEFAULT_SERVER,
) -> None:
    """Build an index again by another chain or encoder, or with another graph, while the server serves the old one.

    Another encoder, which the server must know, encodes the texts of all items again; the server loads it first. The
    index switches when all is built. The last line printed is the command that rolls back. Without options, rows of
    deleted items are removed. If the command is stopped, the server's job continues.
    """
    reindex_on_server(name, build_request(ReindexRequest, fields), server)


def reindex_on_server(name: str, request: ReindexRequest, server: str) -> None:
    """Reindex an index of the running server, and print the outcome and the command that goes back.

    A progress bar is shown.
    """
    client = ServerClient(server)
    with ProgressBar() as progress:
        _, before = client.request("GET", f"/indexes/{name}")
        if request.encoder:
            client.load_encoder(request.encoder, progress)
        _, job = client.request("POST", f"/indexes/{name}/reindex", request.model_dump(exclude_none=True))
        result = client.wait_for_job(job["job_id"], progress)
    typer.echo(
        f"{name}: {result['rows']:,} items through {result['chain']} in {result['seconds']:,.0f} s, space "
        f"{result['space_id']}"
    )
    if request.encoder and before["encoder"]:
        elsewhere = "" if server == DEFAULT_SERVER else f" --server {server}"
        back = f"--encoder {before['encoder']} --chain {before['chain']}{elsewhere}"
        typer.echo(f"To roll back: lathe index reindex {name} {back}")


@take_fields(CalibrateRequest, queries=flag("--queries", "SOURCE of at least 130 unjudged queries."))
def calibrate(
    name: Annotated[str, typer.Argument(help="NAME of an index of the running server")],
    fields: dict[str, Any],
    server: Server = DEFAULT_SERVER,
) -> None:
    """Let each hit of a search of a running server's index have a probability that it is right.

    Judged queries let the command say how well the probabilities separate right from wrong hits, and from which minimum
    on. Queries and pairs are sent to the server.
    """
    from lathe.training.fitting.pairs import read_pairs

    request = build_request(CalibrateRequest, fields).model_dump(exclude_none=True)
    if "queries" in fields:
        request["queries"] = read_rows_to_send(fields["queries"])
    if "pairs" in fields:
        pairs = read_pairs(fields["pairs"]).pairs
        request["pairs"] = [{"query": query, "document": document} for query, document in pairs]

    client = ServerClient(server)
    with ProgressBar() as progress:
        _, job = client.request("POST", f"/indexes/{name}/calibrate", request)
        result = client.wait_for_job(job["job_id"], progress)
    references = f"{result['queries']:,} queries" if result["queries"] else "its own rows"
    typer.echo(f"{name}: {result['rows']:,} items calibrated with {references} in {result['seconds']:.1f} s")
    typer.echo(result["sentence"])


def read_rows_to_send(source: str) -> dict[str, Any]:
    """Read a source into memory, and return its rows as the body of a request has them: `texts` or `vectors`."""
    from lathe.training.sources.source import open_source

    rows = open_source(source).read_all()
    return {"texts": rows} if isinstance(rows, list) else {"vectors": rows.tolist()}


def require_movable(name: str, present: "TextEncoder", new: "TextEncoder", server: str) -> dict[str, Any]:
    """Check that an index of the running server can move to another encoder, which the server then loads.

    Returns:
        Description of the index, with the `steps` of its chain.

    Raises:
        UnavailableError: if no server answers.
        ServiceError: if there is no such index or encoder, or the key may not change them.
        ConflictError: if the index has vectors of another encoder than `present`, or no texts, or the server has
            another encoder by the name of `new`.
    """
    from lathe.training.encoder.text_encoder import compute_space_id

    client = ServerClient(server)
    _, index = client.request("GET", f"/indexes/{name}")
    if index["raw_space_id"] != compute_space_id(present.fingerprint, None, None, present.dimensions):
        raise ConflictError(
            f"the index {name} has vectors of {index['encoder'] or 'an unknown encoder'}, not of {present.name}: name "
            "that encoder with --from"
        )
    field = index["text_field"] or "text"
    _, page = client.request("GET", f"/indexes/{name}/items")
    if any(field not in (item["metadata"] or {}) for item in page["items"]):
        raise ConflictError(
            f"items of the index {name} have no text in the metadata field {field!r}, and another encoder needs texts"
        )
    with ProgressBar() as progress:
        served = client.load_encoder(new.name, progress)
    if served["fingerprint"] != new.fingerprint:
        raise ConflictError(f"the server at {server} has another encoder by the name {new.name}")
    chain = {} if index["chain"] == "none" else client.request("GET", f"/chains/{index['chain']}")[1]
    described: dict[str, Any] = {"steps": chain.get("steps")} | index
    return described
