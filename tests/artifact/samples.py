"""The tiny complete files of the artifact spec, sections 3.5 and 4.9."""

from __future__ import annotations

PAYLOAD = b"abc" + bytes(253) + bytes.fromhex("803f20c0")
ARTIFACT_ID = bytes(range(16))

LEGACY_OBJECTS = (
    b'"objects":[{"name":"frontend/r","kind":"resource","encoding":"raw-bytes-v1","offset":0,"bytes":3},'
    b'{"name":"text/final_norm","kind":"tensor","shape":[2],"format":"BF16","layout":"contiguous-le-v1",'
    b'"offset":256,"bytes":4}]}'
)
V1_JSON = b'{"model_id":"demo",' + LEGACY_OBJECTS
V2_JSON = b'{"identity":{"model_id":"demo","weights_id":"w"},' + LEGACY_OBJECTS

V3_BODY = (
    b'{"components":{"text":{"config":{},"resources":{"r":"frontend/r"}}},"objects":[{"id":"frontend/r",'
    b'"kind":"resource","encoding":"raw_bytes_v1","offset":0,"bytes":3},{"id":"w0","kind":"tensor","shape":[2],'
    b'"format":"bf16","layout":"contiguous_le_v1","offset":256,"bytes":4}],'
    b'"bindings":{"text/final_norm":{"object":"w0"}},"uses":[],"files":'
)
V3_JSON = V3_BODY + b'[{"path":null,"payload_bytes":260}]}'
V3_SPLIT_JSON = V3_BODY + b'[{"path":null,"payload_bytes":256},{"path":"demo.ninfer.part-0001","payload_bytes":4}]}'


def legacy_file(version: int, json: bytes, payload: bytes = PAYLOAD) -> bytes:
    head = b"NINFER\0" + bytes([version]) + len(json).to_bytes(8, "little") + json
    return head + bytes(-len(head) % 4096) + payload


def v3_file(json: bytes, payload: bytes = PAYLOAD, reserve: int = 4064, artifact_id: bytes = ARTIFACT_ID) -> bytes:
    text = json.ljust(reserve)
    head = b"NINFER\0\x03" + len(text).to_bytes(8, "little") + artifact_id + text
    return head + bytes(-len(head) % 4096) + payload


def part_file(payload: bytes, index: int = 1, artifact_id: bytes = ARTIFACT_ID) -> bytes:
    return (b"NINPRT\0\x03" + index.to_bytes(8, "little") + artifact_id).ljust(4096, b"\0") + payload
