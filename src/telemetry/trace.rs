//! The trace of a client's call (W3C Trace Context), for log lines.

use http::{HeaderMap, HeaderName};

/// The name of the header with the trace.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The ids of a trace and of the client's span, as hexadecimal digits: no other text of the header is logged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// The id of the trace: 32 hexadecimal digits.
    pub(crate) trace_id: String,
    /// The id of the client's span: 16 hexadecimal digits.
    pub(crate) span_id: String,
}

impl Trace {
    /// The trace in the headers of a call; `None` if the header is absent or malformed.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Trace> {
        Trace::read(headers.get(TRACEPARENT)?.as_bytes())
    }

    fn read(traceparent: &[u8]) -> Option<Trace> {
        let mut parts = std::str::from_utf8(traceparent).ok()?.split('-');
        let (version, trace_id, span_id, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let whole =
            is_hex(version, 2) && is_hex(trace_id, 32) && is_hex(span_id, 16) && is_hex(flags, 2);
        // Later versions of the header may have more parts.
        let known = version != "ff" && (version != "00" || parts.next().is_none());
        let mut ids = [trace_id, span_id].into_iter();
        let are_set = ids.all(|id| id.bytes().any(|byte| byte != b'0'));
        (whole && known && are_set).then(|| Trace {
            trace_id: trace_id.to_owned(),
            span_id: span_id.to_owned(),
        })
    }
}

fn is_hex(part: &str, length: usize) -> bool {
    let mut bytes = part.bytes();
    part.len() == length && bytes.all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::Trace;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_has_the_ids_of_the_trace_and_of_the_clients_span() {
        for text in [
            format!("00-{TRACE}-{SPAN}-01"),
            format!("cc-{TRACE}-{SPAN}-00-what-comes-later"),
        ] {
            let (trace_id, span_id) = (TRACE.to_owned(), SPAN.to_owned());
            let trace = Some(Trace { trace_id, span_id });
            assert_eq!(Trace::read(text.as_bytes()), trace, "{text}");
        }
    }

    #[test]
    fn a_header_that_is_not_a_traceparent_has_no_trace() {
        for text in [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{TRACE}0-{SPAN}-01"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{}\u{e9}-{SPAN}-01", &TRACE[2..]),
        ] {
            assert_eq!(Trace::read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Trace::read(b"00-\xff"), None);
    }
}
