"""Everything recorded from the real thing decodes, and encodes to the same bytes again."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.wire import bodies, dialect, headers
from penstock.wire.acl import SIGNATURE, signature
from penstock.wire.bodies import Body
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command, encode_command
from penstock.wire.headers import HeaderStruct


class Recorded(Protocol):
    request_code: int
    name: str
    kind: str
    frame: bytes

    @property
    def command(self) -> Command: ...


# ---- frames --------------------------------------------------------------------------------------------


def test_every_frame_encodes_to_the_same_bytes(recorded: list[Recorded]) -> None:
    encodings = {False: 0, True: 0}
    for record in recorded:
        command = record.command
        has_ext = command.binary or b'"extFields"' in record.frame
        again = encode_command(
            command.code,
            command.opaque,
            flag=command.flag,
            remark=command.remark,
            ext=command.ext if has_ext else None,
            body=command.body or b"",
            binary=command.binary,
            language=command.language,
            version=command.version,
        )
        assert again == record.frame, record.name
        encodings[command.binary] += 1
    assert encodings == {False: 1677, True: 985}


# ---- headers -------------------------------------------------------------------------------------------

SHARED: dict[int, type[HeaderStruct]] = {
    RequestCode.SEND_MESSAGE: headers.SendHeader,
    RequestCode.SEND_REPLY_MESSAGE: headers.SendHeader,
    RequestCode.SEND_MESSAGE_V2: headers.SendHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: headers.SendHeaderV2,
    RequestCode.SEND_REPLY_MESSAGE_V2: headers.SendHeaderV2,
    RequestCode.PULL_MESSAGE: headers.PullHeader,
    RequestCode.LITE_PULL_MESSAGE: headers.PullHeader,
    RequestCode.POP_MESSAGE: headers.PopHeader,
    RequestCode.AUTH_CREATE_USER: headers.AuthUserHeader,
    RequestCode.AUTH_UPDATE_USER: headers.AuthUserHeader,
    RequestCode.AUTH_DELETE_USER: headers.AuthUserHeader,
    RequestCode.AUTH_GET_USER: headers.AuthUserHeader,
    RequestCode.AUTH_CREATE_ACL: headers.AuthAclHeader,
    RequestCode.AUTH_UPDATE_ACL: headers.AuthAclHeader,
    RequestCode.AUTH_GET_ACL: headers.AuthAclHeader,
}
SHARED_RESPONSES: dict[int, type[HeaderStruct]] = {
    RequestCode.SEND_MESSAGE: headers.SendResponseHeader,
    RequestCode.SEND_MESSAGE_V2: headers.SendResponseHeader,
    RequestCode.SEND_BATCH_MESSAGE: headers.SendResponseHeader,
    RequestCode.SEND_REPLY_MESSAGE: headers.SendResponseHeader,
    RequestCode.SEND_REPLY_MESSAGE_V2: headers.SendResponseHeader,
    RequestCode.PULL_MESSAGE: headers.PullResponseHeader,
    RequestCode.LITE_PULL_MESSAGE: headers.PullResponseHeader,
    RequestCode.POP_MESSAGE: headers.PopResponseHeader,
    RequestCode.PEEK_MESSAGE: headers.PopResponseHeader,
    RequestCode.EXCHANGE_BROKER_HA_INFO: headers.ExchangeBrokerHaInfoHeader,
}
GENERIC_KEYS = {"AccessKey", "Signature", "SecurityToken", "ReqT"}
"""May accompany any request and belong to no header."""

FAILED_SEND = {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.ILLEGAL_OPERATION}
"""With these codes a send or recall answer has the region, but not the fields of a stored message."""


def header_type(record: Recorded) -> type[HeaderStruct] | None:
    shared = SHARED if record.kind == "request" else SHARED_RESPONSES
    if record.request_code in shared:
        return shared[record.request_code]
    words = RequestCode(record.request_code).name.split("_")
    suffix = "Header" if record.kind == "request" else "ResponseHeader"
    found = getattr(headers, "".join(word.capitalize() for word in words) + suffix, None)
    assert found is None or issubclass(found, HeaderStruct)
    return found


def known_codes(recorded: list[Recorded]) -> list[Recorded]:
    """Without the codes above 32767 that binary headers cut off."""
    known = {int(code) for code in RequestCode}
    return [record for record in recorded if record.request_code in known]


def test_every_header_decodes_and_encodes_to_the_same_fields(recorded: list[Recorded]) -> None:
    seen: set[type[HeaderStruct]] = set()
    for record in known_codes(recorded):
        command = record.command
        wanted = {key: value for key, value in command.ext.items() if key not in GENERIC_KEYS}
        if command.binary:
            wanted = {key: value for key, value in wanted.items() if value}  # empty counts as missing
        of_type = header_type(record)
        if of_type is None:
            assert not wanted, f"{record.name} {record.kind} has fields that no header knows: {wanted}"
        elif wanted and not (record.kind == "response" and command.code in FAILED_SEND):
            assert command.header(of_type).to_ext() == wanted, record.name
            seen.add(of_type)
    assert len(seen) == 95  # of 101


# ---- bodies --------------------------------------------------------------------------------------------

REQUEST_BODIES: dict[int, type[Body]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: bodies.CreateTopicListRequestBody,
    RequestCode.HEART_BEAT: bodies.HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: bodies.LockBatchRequestBody,
    RequestCode.UNLOCK_BATCH_MQ: bodies.UnlockBatchRequestBody,
    RequestCode.CHECK_CLIENT_CONFIG: bodies.CheckClientRequestBody,
    RequestCode.REGISTER_BROKER: bodies.RegisterBrokerBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: bodies.SubscriptionGroupConfig,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: bodies.SubscriptionGroupList,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: bodies.TopicRouteData,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: bodies.ResetOffsetBody,
    RequestCode.QUERY_DATA_VERSION: bodies.DataVersion,
    RequestCode.QUERY_ASSIGNMENT: bodies.QueryAssignmentRequestBody,
    RequestCode.SET_MESSAGE_REQUEST_MODE: bodies.SetMessageRequestModeRequestBody,
    RequestCode.AUTH_CREATE_USER: bodies.UserInfo,
    RequestCode.AUTH_UPDATE_USER: bodies.UserInfo,
    RequestCode.AUTH_CREATE_ACL: bodies.AclInfo,
    RequestCode.AUTH_UPDATE_ACL: bodies.AclInfo,
    RequestCode.BATCH_ACK_MESSAGE: bodies.BatchAckMessageRequestBody,
}
RESPONSE_BODIES: dict[int, type[Body]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: bodies.TopicConfigAndMappingSerializeWrapper,
    RequestCode.GET_BROKER_RUNTIME_INFO: bodies.KVTable,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: bodies.GetConsumerListByGroupResponseBody,
    RequestCode.LOCK_BATCH_MQ: bodies.LockBatchResponseBody,
    RequestCode.GET_ALL_CONSUMER_OFFSET: bodies.ConsumerOffsetSerializeWrapper,
    RequestCode.GET_ALL_DELAY_OFFSET: bodies.DelayOffsetSerializeWrapper,
    RequestCode.GET_TIMER_METRICS: bodies.TimerMetricsSerializeWrapper,
    RequestCode.REGISTER_BROKER: bodies.KVTable,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: bodies.TopicRouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: bodies.ClusterInfo,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: bodies.SubscriptionGroupWrapper,
    RequestCode.GET_TOPIC_STATS_INFO: bodies.TopicStatsTable,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: bodies.ConsumerConnection,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: bodies.ProducerConnection,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: bodies.TopicList,
    RequestCode.GET_CONSUME_STATS: bodies.ConsumeStats,
    RequestCode.GET_KVLIST_BY_NAMESPACE: bodies.KVTable,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: bodies.GetConsumerStatusBody,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: bodies.ResetOffsetBody,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: bodies.GetConsumerStatusBody,
    RequestCode.GET_TOPICS_BY_CLUSTER: bodies.TopicList,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: bodies.GroupList,
    RequestCode.QUERY_CONSUME_TIME_SPAN: bodies.QueryConsumeTimeSpanBody,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: bodies.TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: bodies.TopicList,
    RequestCode.GET_CONSUMER_RUNNING_INFO: bodies.ConsumerRunningInfo,
    RequestCode.QUERY_CORRECTION_OFFSET: bodies.QueryCorrectionOffsetBody,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: bodies.ConsumeMessageDirectlyResult,
    RequestCode.GET_UNIT_TOPIC_LIST: bodies.TopicList,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: bodies.TopicList,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: bodies.TopicList,
    RequestCode.VIEW_BROKER_STATS_DATA: bodies.BrokerStatsData,
    RequestCode.GET_BROKER_CONSUME_STATS: bodies.ConsumeStatsList,
    RequestCode.QUERY_CONSUME_QUEUE: bodies.QueryConsumeQueueResponseBody,
    RequestCode.QUERY_DATA_VERSION: bodies.DataVersion,
    RequestCode.GET_ALL_PRODUCER_INFO: bodies.ProducerTableInfo,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: bodies.TopicList,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: bodies.QuerySubscriptionResponseBody,
    RequestCode.GET_TOPIC_CONFIG: bodies.TopicConfigAndQueueMapping,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: bodies.SubscriptionGroupConfig,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: bodies.GroupForbidden,
    RequestCode.QUERY_ASSIGNMENT: bodies.QueryAssignmentResponseBody,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: bodies.MessageRequestModeSerializeWrapper,
    RequestCode.GET_BROKER_MEMBER_GROUP: bodies.GetBrokerMemberGroupResponseBody,
    RequestCode.GET_BROKER_HA_STATUS: bodies.HARuntimeInfo,
    RequestCode.AUTH_GET_USER: bodies.UserInfo,
    RequestCode.AUTH_GET_ACL: bodies.AclInfo,
}
LIST_BODIES: dict[int, type[Body]] = {
    RequestCode.AUTH_LIST_USER: bodies.UserInfo,
    RequestCode.AUTH_LIST_ACL: bodies.AclInfo,
}
NO_STRUCT = {RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, RequestCode.GET_BROKER_LITE_INFO}
"""JSON that no part of ours reads."""


def canonical(data: bytes) -> Any:
    """Java writes maps in the order of their hashes; we sort them. Everything else must agree to the byte."""
    return dialect.dumps(dialect.loads(data))


def has_json_body(record: Recorded) -> bool:
    body = record.command.body
    if (
        body is None or body == b"{}"
    ):  # nothing to compare: a body without acks, which we write as an empty list
        return False
    return body[:1] in (b"{", b"[") and record.request_code not in NO_STRUCT


def test_every_json_body_decodes_and_encodes_to_the_same_json(recorded: list[Recorded]) -> None:
    identical = total = 0
    for record in known_codes(recorded):
        if not has_json_body(record):
            continue
        data = record.command.body or b""
        if record.request_code in LIST_BODIES:
            again = dialect.dumps(LIST_BODIES[record.request_code].decode_list(data))
        else:
            body_type = (REQUEST_BODIES if record.kind == "request" else RESPONSE_BODIES)[record.request_code]
            strict = b'"0":' in data
            body = body_type.decode(data)
            again = body.encode(strict=strict)
            assert body_type.decode(body.encode(strict=not strict)) == body
        assert canonical(again) == canonical(data), record.name
        total += 1
        identical += again == data
    assert total == 612
    assert identical == 504  # in the others Java's maps happen to be in another order


def test_the_compressed_registrations_decode(recorded: list[Recorded]) -> None:
    found = 0
    for record in recorded:
        body = record.command.body
        if record.request_code == RequestCode.REGISTER_BROKER and record.kind == "request" and body:
            registration = bodies.RegisterBrokerBody.decode(body)
            again = bodies.RegisterBrokerBody.decode(registration.encode_compressed())
            ours, theirs = again.topic_config_serialize_wrapper, registration.topic_config_serialize_wrapper
            assert ours.topic_config_table.keys() == theirs.topic_config_table.keys()
            assert ours.data_version == theirs.data_version
            found += body[:1] == b"\x78"
    assert found


# ---- signatures ----------------------------------------------------------------------------------------


def test_the_signatures_of_the_java_client_are_ours(recorded: list[Recorded]) -> None:
    secrets = {"admin": "admin12345", "app": "app12345"}
    right = wrong = 0
    for record in recorded:
        command = record.command
        key = command.ext.get("AccessKey")
        if record.kind == "request" and key in secrets:
            if signature(command.ext, command.body, secrets[key]) == command.ext[SIGNATURE]:
                right += 1
            else:
                wrong += 1
    assert (right, wrong) == (29, 1)  # the scenario has one send that is signed with the wrong secret
