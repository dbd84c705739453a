//! Finds the frames in what was read. Pure: bytes in, frames out, no allocation for a frame.

use bytes::{Buf, Bytes, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend;
use schemas::Lsn;

use crate::error::ServerError;

/// What the stream says, one at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// One message of the output plugin.
    Data {
        /// Where it stands in the WAL; zero where the plugin says nothing (a relation, a type).
        start: Lsn,
        /// The server's end of WAL when it was sent.
        end: Lsn,
        /// When it was sent, microseconds since 2000-01-01 00:00 UTC.
        clock: i64,
        /// The message itself, a slice of what was read.
        payload: Bytes,
    },
    /// A sign of life.
    Keepalive {
        /// How far the server has read: everything below was sent.
        end: Lsn,
        /// When it was sent, microseconds since 2000-01-01 00:00 UTC.
        clock: i64,
        /// Whether it wants a status at once, or will end the connection.
        reply: bool,
    },
}

/// One message of the server while it streams.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message {
    Frame(Frame),
    /// The server sends nothing more.
    Done,
    /// The command has ended.
    Ready,
    /// The server failed.
    Failure(ServerError),
    /// The server warns, and goes on.
    Warning(ServerError),
    /// Nothing that concerns the stream: a notice, a changed parameter, a command's tag.
    Aside,
}

/// The bytes are not what the protocol allows; says what is wrong with them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

/// Tag and length.
const HEADER: usize = 5;
/// Kind, start, end, clock.
const DATA: usize = 25;
/// Kind, end, clock, reply.
const KEEPALIVE: usize = 18;

/// Takes the next whole message off the front of `buffer`. Without one, makes room for the rest of it.
pub(super) fn next(buffer: &mut BytesMut) -> Result<Option<Message>, Malformed> {
    let Some((&[tag, a, b, c, d], _)) = buffer.split_first_chunk::<HEADER>() else { return Ok(None) };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if length < 4 || i32::try_from(length).is_err() {
        return Err(Malformed(format!("a message {:?} of length {length}", char::from(tag))));
    }
    let whole = length + 1;
    if buffer.len() < whole {
        buffer.reserve(whole - buffer.len());
        return Ok(None);
    }
    if tag == backend::COPY_DATA_TAG {
        let mut message = buffer.split_to(whole).freeze();
        message.advance(HEADER);
        return frame(message).map(|frame| Some(Message::Frame(frame)));
    }
    other(buffer).map(Some)
}

fn frame(mut body: Bytes) -> Result<Frame, Malformed> {
    match body.first() {
        Some(b'w') if body.len() >= DATA => {
            body.advance(1);
            let (start, end, clock) = (Lsn(body.get_u64()), Lsn(body.get_u64()), body.get_i64());
            Ok(Frame::Data { start, end, clock, payload: body })
        }
        Some(b'k') if body.len() == KEEPALIVE => {
            body.advance(1);
            Ok(Frame::Keepalive { end: Lsn(body.get_u64()), clock: body.get_i64(), reply: body.get_u8() != 0 })
        }
        kind => {
            let kind = kind.map(|kind| char::from(*kind));
            Err(Malformed(format!("a frame of kind {kind:?} and {} bytes", body.len())))
        }
    }
}

/// Everything that is rare.
fn other(buffer: &mut BytesMut) -> Result<Message, Malformed> {
    match backend::Message::parse(buffer) {
        Ok(Some(backend::Message::CopyDone)) => Ok(Message::Done),
        Ok(Some(backend::Message::ReadyForQuery(_))) => Ok(Message::Ready),
        Ok(Some(backend::Message::ErrorResponse(body))) => Ok(Message::Failure(failure(&body))),
        Ok(Some(backend::Message::NoticeResponse(body))) => Ok(warning(body.fields())),
        Ok(Some(
            backend::Message::ParameterStatus(_)
            | backend::Message::CommandComplete(_)
            | backend::Message::NotificationResponse(_),
        )) => Ok(Message::Aside),
        Ok(_) => Err(Malformed("a message that does not belong into a stream".to_owned())),
        Err(error) => Err(Malformed(error.to_string())),
    }
}

/// A server's error, without the detail that quotes rows.
pub(super) fn failure(body: &backend::ErrorResponseBody) -> ServerError {
    answer(body.fields()).1
}

fn warning(fields: backend::ErrorFields<'_>) -> Message {
    match answer(fields) {
        (severity, answer) if severity == "WARNING" => Message::Warning(answer),
        _ => Message::Aside,
    }
}

/// The severity, in English, and the rest.
fn answer(mut fields: backend::ErrorFields<'_>) -> (String, ServerError) {
    let mut severity = String::new();
    let mut answer = ServerError { sqlstate: String::new(), message: String::new(), hint: None };
    // A field that cannot be read is the server's last word; what stands before it counts.
    while let Ok(Some(field)) = fields.next() {
        let text = String::from_utf8_lossy(field.value_bytes()).into_owned();
        match field.type_() {
            b'V' => severity = text,
            b'C' => answer.sqlstate = text,
            b'M' => answer.message = text,
            b'H' => answer.hint = Some(text),
            _ => {}
        }
    }
    (severity, answer)
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use proptest::prelude::*;

    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("small").to_be_bytes();
        [&[tag], &length[..], body].concat()
    }

    fn encode(frame: &Frame) -> Vec<u8> {
        let mut body = Vec::new();
        match frame {
            Frame::Data { start, end, clock, payload } => {
                body.put_u8(b'w');
                body.put_u64(start.0);
                body.put_u64(end.0);
                body.put_i64(*clock);
                body.put_slice(payload);
            }
            Frame::Keepalive { end, clock, reply } => {
                body.put_u8(b'k');
                body.put_u64(end.0);
                body.put_i64(*clock);
                body.put_u8(u8::from(*reply));
            }
        }
        message(b'd', &body)
    }

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let data = (any::<u64>(), any::<u64>(), any::<i64>(), proptest::collection::vec(any::<u8>(), 0..40));
        let data = data.prop_map(|(start, end, clock, payload)| Frame::Data {
            start: Lsn(start),
            end: Lsn(end),
            clock,
            payload: payload.into(),
        });
        let keepalive = (any::<u64>(), any::<i64>(), any::<bool>());
        let keepalive = keepalive.prop_map(|(end, clock, reply)| Frame::Keepalive { end: Lsn(end), clock, reply });
        proptest::collection::vec(prop_oneof![data, keepalive], 0..20)
    }

    proptest! {
        /// However the network cuts the stream, the frames are the same.
        #[test]
        fn frames_do_not_depend_on_how_the_bytes_arrive(frames in frames(), cut in 1_usize..60) {
            let bytes: Vec<u8> = frames.iter().flat_map(encode).collect();
            let mut buffer = BytesMut::new();
            let mut read = Vec::new();
            for piece in bytes.chunks(cut) {
                buffer.extend_from_slice(piece);
                while let Some(message) = next(&mut buffer).expect("well-formed") {
                    match message {
                        Message::Frame(frame) => read.push(frame),
                        other => prop_assert!(false, "{:?}", other),
                    }
                }
            }
            prop_assert_eq!(read, frames);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = next(&mut buffer) {}
        }
    }

    #[test]
    fn what_is_no_frame_is_told_apart() {
        let error = message(b'E', b"SFATAL\0C57P01\0Mgoing down\0DKey (id)=(42)\0Hwait\0\0");
        let notice = message(b'N', b"SHINWEIS\0VNOTICE\0C00000\0Mby the way\0\0");
        let warning = message(b'N', b"SWARNUNG\0VWARNING\0C42704\0Mno such publication\0\0");
        let stream = [notice, warning, error, message(b'c', b""), message(b'Z', b"I")].concat();
        let mut buffer = BytesMut::from(&stream[..]);
        let mut take = || next(&mut buffer).expect("well-formed");
        assert_eq!(take(), Some(Message::Aside));
        let Some(Message::Warning(answer)) = take() else { panic!("a warning came") };
        assert_eq!(answer.to_string(), "no such publication (SQLSTATE 42704)");
        let Some(Message::Failure(answer)) = take() else { panic!("an error came") };
        assert_eq!(answer.to_string(), "going down (SQLSTATE 57P01), hint: wait");
        assert_eq!(take(), Some(Message::Done));
        assert_eq!(take(), Some(Message::Ready));
        assert_eq!(take(), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [message(b'd', b"x"), message(b'd', b"w123"), message(b'd', b""), b"d\0\0\0\x03".to_vec()] {
            assert!(next(&mut BytesMut::from(&bytes[..])).is_err(), "{bytes:?} was accepted");
        }
    }
}
