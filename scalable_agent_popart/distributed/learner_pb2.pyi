from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class HandshakeRequest(_message.Message):
    __slots__ = ("name", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    settings: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class HandshakeReply(_message.Message):
    __slots__ = ("settings", "session")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.ScalarMap[str, str]
    session: bytes
    def __init__(self, settings: _Optional[_Mapping[str, str]] = ..., session: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("session", "wait", "turn")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    wait: bool
    turn: int
    def __init__(self, session: _Optional[bytes] = ..., wait: _Optional[bool] = ..., turn: _Optional[int] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("taken", "free", "finished", "pause", "newest_turn")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    FREE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TURN_FIELD_NUMBER: _ClassVar[int]
    taken: int
    free: int
    finished: bool
    pause: float
    newest_turn: int
    def __init__(self, taken: _Optional[int] = ..., free: _Optional[int] = ..., finished: _Optional[bool] = ..., pause: _Optional[float] = ..., newest_turn: _Optional[int] = ...) -> None: ...

class WeightsRequest(_message.Message):
    __slots__ = ("session", "known_version")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    known_version: int
    def __init__(self, session: _Optional[bytes] = ..., known_version: _Optional[int] = ...) -> None: ...

class WeightsReply(_message.Message):
    __slots__ = ("version", "variables")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    version: int
    variables: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, version: _Optional[int] = ..., variables: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("session", "number", "count", "turn", "leaves")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    number: int
    count: int
    turn: int
    leaves: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[bytes] = ..., number: _Optional[int] = ..., count: _Optional[int] = ..., turn: _Optional[int] = ..., leaves: _Optional[_Iterable[bytes]] = ...) -> None: ...
