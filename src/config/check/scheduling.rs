//! Checks a row's scheduling and overhead by the API server's rules for a RuntimeClass.

use std::str::FromStr;

use strum::VariantNames;

use super::Checker;
use crate::config::kubernetes;
use crate::config::problem::{Place, nearest};
use crate::config::scheduling::{Effect, Operator, Scheduling, Toleration};
use crate::config::text::{self, At};

impl Checker<'_> {
    /// The valid settings of a row. If a setting is invalid, a problem is recorded and no `Config` is returned.
    pub(super) fn scheduling(&mut self, written: &text::Scheduling) -> Scheduling {
        let class = written.class.as_ref();
        let mut checked = Scheduling {
            class: class.and_then(|class| self.parsed(class, kubernetes::class)),
            ..Scheduling::default()
        };
        for (resource, text) in &written.overhead {
            let parse = match *resource {
                "cpu" => kubernetes::cpu,
                _ => kubernetes::memory,
            };
            let quantity = self.parsed(text, parse);
            let quantity = quantity.map(|quantity| ((*resource).to_owned(), quantity));
            checked.overhead.extend(quantity);
        }
        for (key, value) in &written.node_selector {
            let key = self.parsed(key, kubernetes::label_key);
            let value = self.parsed(value, kubernetes::label_value);
            checked.node_selector.extend(key.zip(value));
        }
        for toleration in &written.tolerations {
            let tolerations = self.toleration(toleration, &checked.tolerations);
            checked.tolerations.extend(tolerations);
        }
        checked
    }

    fn toleration(
        &mut self,
        written: &text::Toleration,
        before: &[Toleration],
    ) -> Option<Toleration> {
        // Parses all fields before the first `?`, so that all problems are reported.
        let text = |name| written.texts.get(name);
        let key = self.taint_key(text("key"));
        let operator = self.one_of("an operator", text("operator"));
        let value = self.taint_value(text("value"));
        let effect = self.one_of("an effect", text("effect"));
        let toleration = Toleration {
            key: key?,
            operator: operator?,
            value: value?,
            effect: effect?,
            seconds: text("toleration_seconds").and_then(|text| text.value.parse().ok()),
        };
        self.fits(&toleration, written);
        if before.iter().any(|other| other.same_taints(&toleration)) {
            let what = "this toleration is already in the list";
            self.report(&written.place, what, "removing one of the two");
        }
        Some(toleration)
    }

    /// Checks that the fields of a toleration fit together.
    fn fits(&mut self, toleration: &Toleration, written: &text::Toleration) {
        let exists = toleration.operator == Operator::Exists;
        if toleration.key.is_empty() && !exists {
            let what =
                "a toleration without a key matches every taint and needs the operator Exists";
            self.report(&written.place, what, "operator = \"Exists\", or a key");
        }
        let value = written.texts.get("value");
        if let (true, false, Some(value)) = (exists, toleration.value.is_empty(), value) {
            let what = "the operator Exists takes no value";
            self.report(&value.place, what, "operator = \"Equal\", or no value");
        }
        let seconds = written.texts.get("toleration_seconds");
        if let (Some(seconds), false) = (seconds, toleration.effect == Effect::NoExecute) {
            let what = "\"toleration_seconds\" is for the effect NoExecute only";
            self.report(&seconds.place, what, "effect = \"NoExecute\"");
        }
    }

    fn taint_key(&mut self, written: Option<&At<String>>) -> Option<String> {
        match written.filter(|key| !key.value.is_empty()) {
            Some(key) => self.parsed(key, kubernetes::label_key),
            None => Some(String::new()),
        }
    }

    fn taint_value(&mut self, written: Option<&At<String>>) -> Option<String> {
        match written {
            Some(value) => self.parsed(value, kubernetes::label_value),
            None => Some(String::new()),
        }
    }

    /// The variant with the written name; the default variant if no name is written; `None` if the name is unknown.
    fn one_of<T>(&mut self, kind: &str, written: Option<&At<String>>) -> Option<T>
    where
        T: Default + FromStr + VariantNames,
    {
        let Some(text) = written.filter(|text| !text.value.is_empty()) else {
            return Some(T::default());
        };
        let found = text.value.parse().ok();
        if found.is_none() {
            let what = format!("{:?} is not {kind} of tolerations", text.value);
            let names = T::VARIANTS.iter().copied();
            let hint = nearest(&text.value, names.filter(|name| !name.is_empty()));
            self.report(&text.place, &what, &hint.unwrap_or_default());
        }
        found
    }

    fn report(&mut self, place: &Place, what: &str, hint: &str) {
        self.problems.report(place, what, hint);
    }
}
