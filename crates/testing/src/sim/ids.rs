//! Ids: generated from a seed, so that every run has the same ids, and found by any unique prefix.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use tonic::Status;

/// Generates ids that look random but depend only on the seed and their order.
pub struct Ids {
    pub seed: String,
    /// The prefixes of the next ids.
    pub prefixes: VecDeque<String>,
    made: u64,
}

impl Ids {
    pub fn new(seed: &str) -> Ids {
        Ids {
            seed: seed.to_owned(),
            prefixes: VecDeque::new(),
            made: 0,
        }
    }

    pub fn next(&mut self) -> String {
        self.made += 1;
        let mut id = self.prefixes.pop_front().unwrap_or_default();
        id += &hex((&self.seed, self.made));
        id.truncate(64);
        id
    }

    /// A short id that was not returned before.
    pub fn token(&mut self) -> String {
        self.made += 1;
        let mut token = hex(("token", &self.seed, self.made));
        token.truncate(8);
        token
    }
}

/// 64 hexadecimal digits that depend only on `value`.
pub fn hex(value: impl Hash) -> String {
    (0..4)
        .map(|part: u64| {
            let mut hasher = DefaultHasher::new();
            (&value, part).hash(&mut hasher);
            format!("{:016x}", hasher.finish())
        })
        .collect()
}

/// The reason why a look-up failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    Empty,
    Unknown,
    Ambiguous,
}

/// The index of the one id that begins with `key`.
pub fn find<'a>(ids: impl Iterator<Item = &'a str>, key: &str) -> Result<usize, Miss> {
    if key.is_empty() {
        return Err(Miss::Empty);
    }
    let mut hits = ids.enumerate().filter(|(_, id)| id.starts_with(key));
    match (hits.next(), hits.next()) {
        (None, _) => Err(Miss::Unknown),
        (Some((place, _)), None) => Ok(place),
        (Some(_), Some(_)) => Err(Miss::Ambiguous),
    }
}

impl Miss {
    /// The status with containerd's words. `what` is `sandbox` or `container`.
    pub fn status(self, what: &str, key: &str) -> Status {
        let text = format!("an error occurred when try to find {what} \"{key}\"");
        match self {
            Miss::Empty => Status::unknown(format!("{text}: Prefix can't be empty")),
            Miss::Unknown => Status::not_found(format!("{text}: not found")),
            Miss::Ambiguous => Status::unknown(format!(
                "{text}: Multiple IDs found with provided prefix: {key}"
            )),
        }
    }
}
