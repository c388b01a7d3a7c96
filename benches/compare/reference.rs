//! The reference for merges: prost decodes, extends and encodes the lists, without any transport.

use std::hint::black_box;
use std::time::Instant;

use bytes::{Buf, Bytes};
use criswitch_cri::codec::cri;
use criswitch_cri::codec::frames::FRAME_HEADER;
use prost::Message;

use crate::round::{Round, nanoseconds_since};
use crate::works::Work;

pub fn measure(work: Work, calls: usize) -> Round {
    let lists = (0..work.backends()).flat_map(|backend| work.replies(backend, "ListContainers"));
    let lists: Vec<Bytes> = lists
        .map(|mut list| {
            list.advance(FRAME_HEADER);
            list
        })
        .collect();
    let begin = Instant::now();
    let took = (0..calls).map(|_| {
        let since = Instant::now();
        let mut merged = cri::ListContainersResponse::default();
        for list in &lists {
            let list = cri::ListContainersResponse::decode(black_box(list.clone())).unwrap();
            merged.containers.extend(list.containers);
        }
        black_box(merged.encode_to_vec());
        drop(merged);
        nanoseconds_since(since)
    });
    Round::new(took.collect(), begin.elapsed(), None)
}
