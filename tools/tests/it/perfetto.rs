//! Perfetto's format, decoded with the messages that the exporter writes. That their numbers are those of the schema is what
//! [`golden`](crate::export) bytes show, which the published bindings have decoded.

#[path = "../../export/src/perfetto/schema.rs"]
mod schema;

use prost::Message;

pub(crate) use schema::*;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(crate) packet: Vec<TracePacket>,
}

/// Decodes a whole trace, of which nothing may be unknown.
#[track_caller]
pub(crate) fn parse(bytes: &[u8]) -> Vec<TracePacket> {
    let whole = Trace::decode(bytes).expect("valid protobuf");
    assert!(whole.encode_to_vec() == bytes, "a field that is not known");
    whole.packet
}
