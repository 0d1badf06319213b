"""Errors that the engine raises for an HTTP error status of a vLLM server. An error is either
temporary, or stays until a person changes the server or the settings."""

from __future__ import annotations

import httpx

from ..protocol import EngineLost, EngineUnavailable, RolloutError

_TEMPORARY = (408, 425, 429)
"""Status codes below 500 after which the same request may succeed."""
_NO_METHOD = "has no attribute 'tunesmith_"
"""Part of vLLM's message if its worker class lacks our methods."""
_EXTENSION = "--worker-extension-cls tunesmith_worker.engine.rollout.vllm.receiver.WeightReceiver"
_REMEDIES = {
    "/collective_rpc": "Start the server with VLLM_SERVER_DEV_MODE=1 in its environment.",
    "/inference/v1/generate": "Start the server with --enable-scale-out.",
}
"""Remedies for a server that answers 404, keyed by the path of the request."""
_OPTIONS = "Start the server with all options in docs/how-to/vllm.md."
_ADDRESS = (
    "Set TUNESMITH_ROLLOUT_URL to the address of vLLM's server without a path, for example "
    "http://10.0.0.7:8003."
)


def problem_of(reply: httpx.Response, url: str) -> RolloutError:
    """Return EngineLost if the server at `url` may answer later, else EngineUnavailable."""
    status, path = reply.status_code, reply.request.url.path
    if status in (401, 403):
        has_key = "authorization" in reply.request.headers
        return EngineUnavailable(
            f"the vLLM server at {url} refuses the API key in TUNESMITH_ROLLOUT_TOKEN"
            if has_key
            else f"the vLLM server at {url} needs an API key, and TUNESMITH_ROLLOUT_TOKEN is empty",
            "Set TUNESMITH_ROLLOUT_TOKEN to the value of the server's option --api-key.",
        )
    wrong_health = path.endswith("/health") and 400 <= status < 500 and status not in _TEMPORARY
    if 300 <= status < 400 or wrong_health:
        return not_vllm(reply, url)
    problem = f"the vLLM server at {url} answers {status} to {path}: {_text(reply)[:300]}"
    if _NO_METHOD in reply.text:
        return EngineUnavailable(
            f"the vLLM server at {url} was started without {_EXTENSION}, or has another version of "
            "Tunesmith",
            "Install the trainer's version of Tunesmith there, and start the server with all "
            "options in docs/how-to/vllm.md.",
        )
    if status >= 500 or status in _TEMPORARY:
        return EngineLost(problem)
    return EngineUnavailable(problem, _REMEDIES.get(path, _OPTIONS) if status == 404 else _OPTIONS)


def not_vllm(reply: httpx.Response, url: str) -> EngineUnavailable:
    """Return the error for a URL at which a program other than vLLM answers."""
    return EngineUnavailable(
        f"the server at {url} is not vLLM's: it answers {reply.status_code} to "
        f"{reply.request.url.path}: {_text(reply)[:100]}",
        _ADDRESS,
    )


def _text(reply: httpx.Response) -> str:
    """Return the answer's text without our API key, because another program may echo the key."""
    key = reply.request.headers.get("authorization", "").removeprefix("Bearer ")
    return reply.text.replace(key, "[API key]") if key else reply.text
