from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PURPOSE_UNSPECIFIED: _ClassVar[Purpose]
    PURPOSE_SERVE: _ClassVar[Purpose]
    PURPOSE_FILL: _ClassVar[Purpose]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_GATED: _ClassVar[Role]
    ROLE_WARM: _ClassVar[Role]
    ROLE_ACTIVE: _ClassVar[Role]
    ROLE_DRAINING: _ClassVar[Role]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_STARTED: _ClassVar[Phase]
    PHASE_FILLING: _ClassVar[Phase]
    PHASE_ATTACHED: _ClassVar[Phase]
    PHASE_WARM: _ClassVar[Phase]
    PHASE_ACCEPTING: _ClassVar[Phase]
    PHASE_DRAINING: _ClassVar[Phase]
    PHASE_EXITED: _ClassVar[Phase]
PURPOSE_UNSPECIFIED: Purpose
PURPOSE_SERVE: Purpose
PURPOSE_FILL: Purpose
ROLE_UNSPECIFIED: Role
ROLE_GATED: Role
ROLE_WARM: Role
ROLE_ACTIVE: Role
ROLE_DRAINING: Role
PHASE_UNSPECIFIED: Phase
PHASE_STARTED: Phase
PHASE_FILLING: Phase
PHASE_ATTACHED: Phase
PHASE_WARM: Phase
PHASE_ACCEPTING: Phase
PHASE_DRAINING: Phase
PHASE_EXITED: Phase

class LauncherMessage(_message.Message):
    __slots__ = ("hello", "attach", "server_event", "leaving", "performance")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    SERVER_EVENT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    PERFORMANCE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    attach: Attach
    server_event: ServerEvent
    leaving: Leaving
    performance: Performance
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ..., server_event: _Optional[_Union[ServerEvent, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., performance: _Optional[_Union[Performance, _Mapping]] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("welcome", "go", "attach_answer", "set_role", "stop", "kill", "turn", "readiness")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    GO_FIELD_NUMBER: _ClassVar[int]
    ATTACH_ANSWER_FIELD_NUMBER: _ClassVar[int]
    SET_ROLE_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    KILL_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    READINESS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    go: Go
    attach_answer: AttachAnswer
    set_role: SetRole
    stop: Stop
    kill: Kill
    turn: Turn
    readiness: Readiness
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., go: _Optional[_Union[Go, _Mapping]] = ..., attach_answer: _Optional[_Union[AttachAnswer, _Mapping]] = ..., set_role: _Optional[_Union[SetRole, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., kill: _Optional[_Union[Kill, _Mapping]] = ..., turn: _Optional[_Union[Turn, _Mapping]] = ..., readiness: _Optional[_Union[Readiness, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("ticket", "revision", "runtime", "purpose", "plan", "weights", "role", "server", "term", "device_bytes", "gpus")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    revision: str
    runtime: str
    purpose: Purpose
    plan: Plan
    weights: _containers.RepeatedCompositeFieldContainer[WeightSet]
    role: Role
    server: Server
    term: int
    device_bytes: int
    gpus: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ticket: _Optional[bytes] = ..., revision: _Optional[str] = ..., runtime: _Optional[str] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., weights: _Optional[_Iterable[_Union[WeightSet, _Mapping]]] = ..., role: _Optional[_Union[Role, str]] = ..., server: _Optional[_Union[Server, _Mapping]] = ..., term: _Optional[int] = ..., device_bytes: _Optional[int] = ..., gpus: _Optional[_Iterable[str]] = ...) -> None: ...

class Server(_message.Message):
    __slots__ = ("id", "phase", "sets")
    ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    id: str
    phase: Phase
    sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ..., sets: _Optional[_Iterable[str]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("private_bytes",)
    class PrivateBytesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PRIVATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    private_bytes: _containers.ScalarMap[str, int]
    def __init__(self, private_bytes: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WeightSet(_message.Message):
    __slots__ = ("role", "rank", "bytes", "digest", "identity")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    role: str
    rank: int
    bytes: int
    digest: str
    identity: bytes
    def __init__(self, role: _Optional[str] = ..., rank: _Optional[int] = ..., bytes: _Optional[int] = ..., digest: _Optional[str] = ..., identity: _Optional[bytes] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("request", "server", "sets")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    request: int
    server: str
    sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request: _Optional[int] = ..., server: _Optional[str] = ..., sets: _Optional[_Iterable[str]] = ...) -> None: ...

class AttachAnswer(_message.Message):
    __slots__ = ("request", "granted", "fill", "wait", "refused")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    request: int
    granted: Granted
    fill: Fill
    wait: Wait
    refused: Refused
    def __init__(self, request: _Optional[int] = ..., granted: _Optional[_Union[Granted, _Mapping]] = ..., fill: _Optional[_Union[Fill, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class Tickets(_message.Message):
    __slots__ = ("ticket", "set")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    set: str
    def __init__(self, ticket: _Optional[bytes] = ..., set: _Optional[str] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("tickets",)
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedCompositeFieldContainer[Tickets]
    def __init__(self, tickets: _Optional[_Iterable[_Union[Tickets, _Mapping]]] = ...) -> None: ...

class Fill(_message.Message):
    __slots__ = ("tickets", "granted")
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedCompositeFieldContainer[Tickets]
    granted: _containers.RepeatedCompositeFieldContainer[Tickets]
    def __init__(self, tickets: _Optional[_Iterable[_Union[Tickets, _Mapping]]] = ..., granted: _Optional[_Iterable[_Union[Tickets, _Mapping]]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("reason", "progress")
    REASON_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    progress: float
    def __init__(self, reason: _Optional[str] = ..., progress: _Optional[float] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "fields")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    fields: _containers.RepeatedCompositeFieldContainer[FieldDifference]
    def __init__(self, reason: _Optional[str] = ..., fields: _Optional[_Iterable[_Union[FieldDifference, _Mapping]]] = ...) -> None: ...

class FieldDifference(_message.Message):
    __slots__ = ("field", "wanted", "held")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    field: str
    wanted: str
    held: str
    def __init__(self, field: _Optional[str] = ..., wanted: _Optional[str] = ..., held: _Optional[str] = ...) -> None: ...

class ServerEvent(_message.Message):
    __slots__ = ("server", "phase", "exit_code", "milliseconds", "phases", "progress")
    class PhasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SERVER_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    server: str
    phase: Phase
    exit_code: int
    milliseconds: float
    phases: _containers.ScalarMap[str, float]
    progress: float
    def __init__(self, server: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ..., exit_code: _Optional[int] = ..., milliseconds: _Optional[float] = ..., phases: _Optional[_Mapping[str, float]] = ..., progress: _Optional[float] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Performance(_message.Message):
    __slots__ = ("in_flight", "requests", "output_tokens", "mean_tpot_ms", "mean_ttft_ms", "failed", "mean_accept_length", "patience_ms", "proofs", "proof_every_ms", "arrivals", "draft_tokens", "samples", "window_seconds")
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MEAN_TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    MEAN_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    MEAN_ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_MS_FIELD_NUMBER: _ClassVar[int]
    PROOFS_FIELD_NUMBER: _ClassVar[int]
    PROOF_EVERY_MS_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    in_flight: int
    requests: int
    output_tokens: int
    mean_tpot_ms: float
    mean_ttft_ms: float
    failed: int
    mean_accept_length: float
    patience_ms: float
    proofs: int
    proof_every_ms: float
    arrivals: int
    draft_tokens: int
    samples: int
    window_seconds: float
    def __init__(self, in_flight: _Optional[int] = ..., requests: _Optional[int] = ..., output_tokens: _Optional[int] = ..., mean_tpot_ms: _Optional[float] = ..., mean_ttft_ms: _Optional[float] = ..., failed: _Optional[int] = ..., mean_accept_length: _Optional[float] = ..., patience_ms: _Optional[float] = ..., proofs: _Optional[int] = ..., proof_every_ms: _Optional[float] = ..., arrivals: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., samples: _Optional[int] = ..., window_seconds: _Optional[float] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("term", "recovering")
    TERM_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    term: int
    recovering: bool
    def __init__(self, term: _Optional[int] = ..., recovering: bool = ...) -> None: ...

class Go(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class SetRole(_message.Message):
    __slots__ = ("role", "term", "grace_seconds")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    role: Role
    term: int
    grace_seconds: float
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., term: _Optional[int] = ..., grace_seconds: _Optional[float] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("exit_code", "reason")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    reason: str
    def __init__(self, exit_code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Kill(_message.Message):
    __slots__ = ("server", "reason")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    server: str
    reason: str
    def __init__(self, server: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("busy",)
    BUSY_FIELD_NUMBER: _ClassVar[int]
    busy: bool
    def __init__(self, busy: bool = ...) -> None: ...

class Readiness(_message.Message):
    __slots__ = ("held_back", "reason")
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    held_back: bool
    reason: str
    def __init__(self, held_back: bool = ..., reason: _Optional[str] = ...) -> None: ...
