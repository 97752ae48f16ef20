# SPDX-License-Identifier: Apache-2.0
"""What speedscope and pprof read."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def check_speedscope(document: dict[str, Any]) -> None:
    """What https://www.speedscope.app/file-format-schema.json and its importer ask for."""
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = document["shared"]["frames"]
    assert all(isinstance(frame["name"], str) for frame in frames)
    assert isinstance(document["name"], str)
    assert document["exporter"].startswith("gpuscope@")
    assert document["activeProfileIndex"] == 0
    for profile in document["profiles"]:
        assert set(profile) == {"type", "name", "unit", "startValue", "endValue", "events"}
        assert (profile["type"], profile["unit"]) == ("evented", "nanoseconds")
        opened: list[int] = []
        at = profile["startValue"]
        for event in profile["events"]:
            assert set(event) == {"type", "frame", "at"}
            assert at <= event["at"] <= profile["endValue"]
            at = event["at"]
            assert 0 <= event["frame"] < len(frames)
            if event["type"] == "O":
                opened.append(event["frame"])
            else:
                assert event["type"] == "C"
                assert opened.pop() == event["frame"]
        assert not opened


def pprof_message() -> Any:
    """Profile of google/pprof's proto/profile.proto, written down once more."""
    fields = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools", syntax="proto3")
    messages: dict[str, list[tuple[str, int, str, bool]]] = {
        "ValueType": [("type", 1, "int64", False), ("unit", 2, "int64", False)],
        "Sample": [("location_id", 1, "uint64", True), ("value", 2, "int64", True)],
        "Line": [("function_id", 1, "uint64", False), ("line", 2, "int64", False)],
        "Mapping": [("id", 1, "uint64", False), ("filename", 5, "int64", False), ("has_functions", 7, "uint64", False)],
        "Location": [("id", 1, "uint64", False), ("mapping_id", 2, "uint64", False), ("line", 4, "Line", True)],
        "Function": [
            ("id", 1, "uint64", False),
            ("name", 2, "int64", False),
            ("system_name", 3, "int64", False),
            ("filename", 4, "int64", False),
        ],
        "Profile": [
            ("sample_type", 1, "ValueType", True),
            ("sample", 2, "Sample", True),
            ("mapping", 3, "Mapping", True),
            ("location", 4, "Location", True),
            ("function", 5, "Function", True),
            ("string_table", 6, "string", True),
            ("time_nanos", 9, "int64", False),
            ("duration_nanos", 10, "int64", False),
            ("comment", 13, "int64", True),
            ("default_sample_type", 14, "int64", False),
        ],
    }
    types = {"int64": fields.TYPE_INT64, "uint64": fields.TYPE_UINT64, "string": fields.TYPE_STRING}
    for name, members in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in members:
            added = message.field.add(name=field, number=number)
            added.label = fields.LABEL_REPEATED if repeated else fields.LABEL_OPTIONAL
            added.type = types.get(kind, fields.TYPE_MESSAGE)
            if kind not in types:
                added.type_name = f".perftools.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.Profile"))()
