//! The results of learning from a reply.

use criswitch_cri::codec::protobuf::Malformed;

use super::{BackendId, Changed, LONGEST_ID, MOST};

/// A backend listed or returned an id that another backend owns. The owner keeps the id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The id.
    pub id: String,
    /// The backend that owns the id.
    pub owner: BackendId,
}

/// The result of learning that a backend returned an id from a call that creates a pod or container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// If another backend keeps the id: the claim.
    pub claim: Option<Claim>,
    /// The backends whose items changed.
    pub changed: Changed,
}

/// The result of learning from a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnedList {
    /// Ids in the list that another backend owns. Each id is reported only once, by the first list that has it.
    pub claims: Vec<Claim>,
    /// The number of items in the list that are repeated or belong to other backends.
    pub dropped: usize,
    /// The number of ids in the list that had no owner before.
    pub new: usize,
    /// Whether the list changed a known fact, or has items that the backend does not own.
    pub changes: bool,
    /// The backends whose items changed.
    pub changed: Changed,
}

/// Why nothing is learned from a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unlearned {
    /// The list cannot be decoded.
    #[error("its reply is malformed: {0}")]
    Malformed(Malformed),
    /// An id is longer than any valid id.
    #[error("it lists an id of more than {LONGEST_ID} bytes")]
    LongId,
    /// The list has more items than any backend can have.
    #[error("it lists more than {MOST} items")]
    TooMany,
}

impl From<Malformed> for Unlearned {
    fn from(fault: Malformed) -> Unlearned {
        Unlearned::Malformed(fault)
    }
}
