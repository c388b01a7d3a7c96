//! Compares the table of RPCs with the interface. A new version of the CRI fails here until its RPCs have rows.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy allows these in test functions only, not in their helpers"
)]

use std::collections::{BTreeMap, BTreeSet};

use criswitch_cri::rpc::features::{self, Feature};
use criswitch_cri::rpc::fields;
use criswitch_cri::rpc::{
    self, Filter, Goes, HandlerPaths, IfUnimplemented, ImageRule, Kind, List, Merge, ROWS, Row,
    Then,
};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, MethodDescriptorProto};

#[expect(
    dead_code,
    unreachable_pub,
    reason = "the fault simulation uses the rest"
)]
#[path = "chaos/simulation/lacking.rs"]
mod lacking;
#[path = "interface/proto.rs"]
mod proto;

struct Interface {
    messages: BTreeMap<String, DescriptorProto>,
    methods: BTreeMap<String, MethodDescriptorProto>,
}

impl Interface {
    fn compiled() -> Interface {
        let mut interface = Interface {
            messages: BTreeMap::new(),
            methods: BTreeMap::new(),
        };
        for file in proto::CRI.file.clone() {
            let package = file.package().to_owned();
            for message in file.message_type {
                let name = format!(".{package}.{}", message.name());
                interface.messages.insert(name, message);
            }
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{package}.{}/{}", service.name(), method.name());
                    interface.methods.insert(path, method.clone());
                }
            }
        }
        interface
    }

    fn method(&self, row: &Row) -> &MethodDescriptorProto {
        &self.methods[&row.path()]
    }

    /// The paths to all fields of `message` that are named `runtime_handler`.
    fn handlers(&self, message: &DescriptorProto) -> BTreeSet<Vec<u32>> {
        let mut found = BTreeSet::new();
        for field in &message.field {
            let number = u32::try_from(field.number()).unwrap();
            if field.name() == "runtime_handler" {
                found.insert(vec![number]);
            }
            // `messages` does not have the generated entry messages of map fields.
            if let Some(inner) = self.messages.get(field.type_name()) {
                let inner = self.handlers(inner).into_iter();
                found.extend(inner.map(|path| [vec![number], path].concat()));
            }
        }
        found
    }

    fn request(&self, row: &Row) -> &DescriptorProto {
        &self.messages[self.method(row).input_type()]
    }

    fn reply(&self, row: &Row) -> &DescriptorProto {
        &self.messages[self.method(row).output_type()]
    }

    /// Collects the paths of all repeated messages and strings in a message. `path` is that of the message.
    fn repeated(&self, message: &DescriptorProto, path: &mut Vec<u32>, found: &mut Repeated) {
        for field in &message.field {
            path.push(u32::try_from(field.number()).unwrap());
            let mut nested = message
                .nested_type
                .iter()
                .filter(|it| field.type_name().ends_with(it.name()));
            if nested.any(|it| it.options.as_ref().is_some_and(|it| it.map_entry())) {
                found.maps.push(path.clone());
            } else {
                let is_long = matches!(field.r#type(), Type::Message | Type::String | Type::Bytes);
                if field.label() == Label::Repeated && is_long {
                    found.lists.push(path.clone());
                }
                if let Some(inner) = self.messages.get(field.type_name()) {
                    self.repeated(inner, path, found);
                }
            }
            path.pop();
        }
    }

    /// The fields on a path, outermost first.
    fn walk(&self, message: &DescriptorProto, path: &[u32]) -> Vec<FieldDescriptorProto> {
        let mut message = message.clone();
        let mut fields = Vec::new();
        for number in path {
            let field = message
                .field
                .iter()
                .find(|field| field.number() == i32::try_from(*number).unwrap())
                .unwrap_or_else(|| panic!("{} has no {number}", message.name()))
                .clone();
            if let Some(inner) = self.messages.get(field.type_name()) {
                message = inner.clone();
            }
            fields.push(field);
        }
        fields
    }

    fn end(&self, message: &DescriptorProto, path: &[u32]) -> FieldDescriptorProto {
        self.walk(message, path).pop().unwrap()
    }
}

/// The paths of repeated fields in a message.
#[derive(Default)]
struct Repeated {
    maps: Vec<Vec<u32>>,
    lists: Vec<Vec<u32>>,
}

impl Repeated {
    fn of(interface: &Interface, message: &str) -> Repeated {
        let message = &interface.messages[&format!(".runtime.v1.{message}")];
        let mut found = Repeated::default();
        interface.repeated(message, &mut Vec::new(), &mut found);
        found
    }
}

fn is_string_key(interface: &Interface, message: &DescriptorProto, path: &[u32]) -> bool {
    let fields = interface.walk(message, path);
    let singular = fields.iter().all(|f| f.label() != Label::Repeated);
    singular && fields.last().unwrap().r#type() == Type::String
}

fn filter_keys(filter: &Filter) -> Vec<&'static [u32]> {
    let id = filter.id.map(|(_, path)| path);
    id.into_iter().chain(filter.pod).collect()
}

/// Whether the field is a list. A map field is repeated too, but is not a list: concatenated maps may repeat a key.
fn is_list(field: &FieldDescriptorProto) -> bool {
    field.label() == Label::Repeated && !field.type_name().ends_with("Entry")
}

#[test]
fn every_rpc_has_exactly_one_row() {
    let rows: Vec<String> = ROWS.iter().map(Row::path).collect();
    let unique: BTreeSet<String> = rows.iter().cloned().collect();
    let interface: BTreeSet<String> = Interface::compiled().methods.into_keys().collect();
    assert_eq!(unique, interface);
    assert_eq!(rows.len(), unique.len(), "a row stands twice");
    assert_eq!(rows.len(), 46);
}

/// If a runtime may not lack an RPC, `Unimplemented` from a backend is an error.
#[test]
fn a_merged_rpc_is_omitted_or_unimplemented_only_if_a_runtime_may_lack_it() {
    for row in ROWS {
        match row.merge() {
            Some(Merge::Items(items)) => {
                let is_error = items.lacking == IfUnimplemented::Error;
                assert_eq!(is_error, !row.may_lack, "{}", row.name);
            }
            Some(Merge::Streamed(list, items)) => {
                assert!(row.may_lack, "{}", row.name);
                let of_list = list.merge().and_then(Merge::items).unwrap();
                assert_eq!(items.lacking, of_list.lacking, "{}", row.name);
            }
            _ => {}
        }
    }
}

#[test]
fn the_fault_simulation_lacks_what_a_runtime_may_lack() {
    let mut lacked: Vec<&str> = lacking::GROUPS.concat();
    lacked.sort_unstable();
    let mut optional: Vec<&str> = ROWS
        .iter()
        .filter(|row| row.may_lack)
        .map(|row| row.name)
        .collect();
    optional.sort_unstable();
    assert_eq!(lacked, optional);
}

#[test]
fn a_path_finds_its_row_and_nothing_else() {
    for row in ROWS {
        assert_eq!(rpc::find(&row.path()).unwrap().name, row.name);
    }
    for path in [
        "",
        "/",
        "/runtime.v1.RuntimeService/",
        "/runtime.v1.RuntimeService/Nothing",
        "/runtime.v1.ImageService/RunPodSandbox",
        "/runtime.v1alpha2.RuntimeService/Version",
        "/runtime.v1.RuntimeService/Version/",
        "/grpc.health.v1.Health/Check",
        "runtime.v1.RuntimeService/Version",
    ] {
        assert!(rpc::find(path).is_none(), "{path}");
    }
}

#[test]
fn every_key_is_a_string_outside_of_any_list() {
    let interface = Interface::compiled();
    let mut checked = 0;
    for row in ROWS {
        let keys = match &row.goes {
            Goes::Default => vec![],
            Goes::Handler(path) | Goes::Owner(_, path, _) | Goes::OwnerWithImage(path) => {
                vec![*path]
            }
            Goes::All(filter, _) => filter_keys(filter),
            Goes::Image(handler, ImageRule::Pull(uid)) => vec![*handler, *uid],
            Goes::Image(handler, _) => vec![*handler],
        };
        for key in keys {
            let request = interface.request(row);
            assert!(
                is_string_key(&interface, request, key),
                "{}: {key:?}",
                row.name
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 41);
}

#[test]
fn the_keys_in_words_are_the_names_of_the_fields() {
    let interface = Interface::compiled();
    for row in ROWS {
        let keys = match &row.goes {
            Goes::Default => vec![],
            Goes::Handler(path) | Goes::Owner(_, path, _) | Goes::OwnerWithImage(path) => {
                vec![*path]
            }
            Goes::All(filter, _) => {
                let keys = filter_keys(filter).into_iter();
                keys.chain(filter.labels).collect()
            }
            Goes::Image(handler, ImageRule::Find(path) | ImageRule::Pull(path)) => {
                vec![*handler, *path]
            }
            Goes::Image(handler, ImageRule::Remove | ImageRule::List(_)) => vec![*handler],
        };
        let names = keys.into_iter().map(|path| {
            let fields = interface.walk(interface.request(row), path);
            let names = fields.iter().map(FieldDescriptorProto::name);
            names.collect::<Vec<_>>().join(".")
        });
        let names = names.collect::<Vec<_>>().join(", ");
        assert_eq!(row.words().key, names, "{}", row.name);
    }
}

#[test]
fn every_filter_of_the_interface_is_read() {
    let interface = Interface::compiled();
    for row in ROWS {
        let Goes::All(filter, _) = &row.goes else {
            continue;
        };
        let request = interface.request(row);
        let Some(first) = request.field.iter().find(|field| field.name() == "filter") else {
            assert!(filter.id.is_none() && filter.pod.is_none() && filter.labels.is_none());
            continue;
        };
        let names: BTreeSet<_> = interface.messages[first.type_name()]
            .field
            .iter()
            .map(|field| field.name().to_owned())
            .collect();
        assert_eq!(filter.id.is_some(), names.contains("id"), "{}", row.name);
        assert_eq!(
            filter.pod.is_some(),
            names.contains("pod_sandbox_id"),
            "{}",
            row.name
        );
        assert_eq!(
            filter.labels.is_some(),
            names.contains("label_selector"),
            "{}",
            row.name
        );
    }
}

#[test]
fn replies_are_concatenated_only_where_every_field_is_a_list() {
    let interface = Interface::compiled();
    let mut checked = 0;
    for row in ROWS {
        let Some(Merge::Items(_)) = row.merge() else {
            continue;
        };
        let reply = interface.reply(row);
        assert!(reply.field.iter().all(is_list), "{}", row.name);
        checked += 1;
    }
    assert_eq!(checked, 8);
}

#[test]
fn replies_are_streamed_exactly_where_the_rpc_is_a_stream() {
    let interface = Interface::compiled();
    for row in ROWS {
        let method = interface.method(row);
        let is_streamed = matches!(row.merge(), Some(Merge::Streamed(..) | Merge::Events));
        assert_eq!(is_streamed, method.server_streaming(), "{}", row.name);
        assert_eq!(row.streams(), method.server_streaming(), "{}", row.name);
        assert!(!method.client_streaming(), "{}", row.name);
    }
}

#[test]
fn the_maps_and_lists_that_the_gate_counts_are_all_of_the_interface() {
    let interface = Interface::compiled();
    for ((message, maps), (same, lists)) in fields::maps::ALL.iter().zip(fields::lists::ALL) {
        assert_eq!(message, same);
        let found = Repeated::of(&interface, message);
        assert_eq!(found.maps, *maps, "{message}");
        assert_eq!(found.lists, *lists, "{message}");
    }
}

/// A list RPC and its streaming RPC must have the same fields by number and type, so that criswitch can send the reply
/// of the list as a message of the stream.
#[test]
fn the_list_instead_of_a_stream_has_the_same_bytes() {
    let interface = Interface::compiled();
    for row in ROWS {
        let Some(Merge::Streamed(list, items)) = row.merge() else {
            continue;
        };
        let shape = |message: &DescriptorProto| -> Vec<_> {
            let fields = message.field.iter();
            fields
                .map(|f| (f.number(), f.r#type(), f.type_name().to_owned()))
                .collect()
        };
        assert_eq!(
            shape(interface.reply(row)),
            shape(interface.reply(list)),
            "{}",
            row.name
        );
        assert_eq!(
            shape(interface.request(row)),
            shape(interface.request(list)),
            "{}",
            row.name
        );
        let of_list = list.merge().and_then(Merge::items);
        assert_eq!(format!("{:?}", Some(items)), format!("{of_list:?}"));
        assert!(!list.streams());
    }
}

#[test]
fn the_named_fields_are_those_of_the_interface() {
    let interface = Interface::compiled();
    for (message, name, number) in fields::ALL {
        let message = &interface.messages[&format!(".runtime.v1.{message}")];
        let mut all = message.field.iter();
        let field = all
            .find(|field| field.name().to_uppercase() == *name)
            .unwrap_or_else(|| panic!("{} has no {name}", message.name()));
        assert_eq!(field.number(), *number as i32, "{}.{name}", message.name());
    }
}

#[test]
fn the_features_are_those_of_the_interface() {
    let interface = Interface::compiled();
    for (message, all) in [
        ("RuntimeFeatures", features::OF_RUNTIME),
        ("RuntimeHandlerFeatures", features::OF_HANDLER),
    ] {
        let fields = &interface.messages[&format!(".runtime.v1.{message}")].field;
        assert!(fields.iter().all(|field| field.r#type() == Type::Bool));
        let fields = fields.iter().map(|field| (field.name(), field.number()));
        let known = all.iter().map(|it| (it.name, it.number as i32));
        assert!(known.eq(fields), "{message}");
        assert!(all.iter().all(Feature::is_served), "{message}");
    }
}

#[test]
fn every_list_has_its_items_and_their_ids_in_the_same_fields() {
    let interface = Interface::compiled();
    for row in ROWS {
        let Then::List(list) = row.then else {
            continue;
        };
        let items = interface.walk(interface.reply(row), &[fields::ITEMS]);
        assert!(is_list(&items[0]), "{}", row.name);
        if matches!(list, List::Pods | List::Containers | List::Images) {
            let path = [&[fields::ITEMS], fields::LISTED_ID].concat();
            let id = interface.walk(interface.reply(row), &path);
            assert_eq!(id[1].name(), "id", "{}", row.name);
        }
    }
}

#[test]
fn the_fields_that_criswitch_learns_from_are_in_the_interface() {
    let interface = Interface::compiled();
    let name = |message: &DescriptorProto, path| interface.end(message, path).name().to_owned();
    for row in ROWS {
        let (request, reply) = (interface.request(row), interface.reply(row));
        match row.then {
            Then::Nothing | Then::Forget | Then::LostImage => {}
            Then::OwnPod(id, config) => {
                assert_eq!(name(reply, id), "pod_sandbox_id");
                assert_eq!(
                    interface.end(request, config).type_name(),
                    ".runtime.v1.PodSandboxConfig"
                );
            }
            Then::KeepDisks => {
                assert_eq!(name(reply, &[1, 2, 1]), "mountpoint");
                assert_eq!(name(reply, &[1, 3]), "used_bytes");
                assert_eq!(name(reply, &[1, 4]), "inodes_used");
            }
            Then::OwnContainer(id) => assert_eq!(name(reply, id), "container_id"),
            Then::OwnRestored(pod, container, config) => {
                assert_eq!(name(reply, pod), "pod_sandbox_id");
                assert_eq!(name(reply, container), "container_id");
                assert_eq!(
                    interface.end(request, config).type_name(),
                    ".runtime.v1.PodSandboxConfig"
                );
            }
            Then::ChangeState(changes) => {
                for change in changes {
                    let (list, ids) = match change.list {
                        List::Pods => (&rpc::LIST_PODS, ["id", ""]),
                        _ => (&rpc::LIST_CONTAINERS, ["id", "pod_sandbox_id"]),
                    };
                    let item = interface.end(interface.reply(list), &[1]);
                    let item = &interface.messages[item.type_name()];
                    let field = |number| interface.end(item, &[number]).name().to_owned();
                    assert!(ids.contains(&field(change.id).as_str()));
                    assert_eq!(field(change.field), "state");
                }
            }
            Then::List(list) => {
                let item = interface.end(reply, &[1]);
                let expected = match list {
                    List::Pods => ".runtime.v1.PodSandbox",
                    List::Containers => ".runtime.v1.Container",
                    List::Images => ".runtime.v1.Image",
                    List::ContainerStats => ".runtime.v1.ContainerStats",
                    List::PodStats => ".runtime.v1.PodSandboxStats",
                    List::PodMetrics => ".runtime.v1.PodSandboxMetrics",
                    List::MetricDescriptors => ".runtime.v1.MetricDescriptor",
                };
                assert_eq!(item.type_name(), expected);
                assert_eq!(list.is_stats(), row.is_stats());
                if let Some((kind, id)) = list.about() {
                    let stats = &interface.messages[item.type_name()];
                    let named = match (kind, id) {
                        (Kind::Pod, [_]) => "pod_sandbox_id",
                        _ => "id",
                    };
                    assert_eq!(name(stats, id), named);
                }
            }
            // `every_handler_in_the_interface_has_the_name_of_its_reader` checks these.
            Then::Rename(_) => {}
            Then::CompleteUrl(path) => assert_eq!(name(reply, path), "url"),
            Then::HaveImage(path) | Then::NewImage(path) => {
                assert!(["id", "image_ref"].contains(&name(reply, path).as_str()))
            }
        }
    }
    let listing = interface.request(&rpc::LIST_IMAGES);
    let texts = rpc::fields::IMAGE_TEXTS.map(|text| {
        let path = [fields::FILTER, fields::image_filter::IMAGE, text];
        interface.end(listing, &path).name().to_owned()
    });
    let strings = [
        "image",
        "user_specified_image",
        "runtime_handler",
        "image_ref",
    ];
    assert_eq!(texts, strings);
    let event = &interface.messages[".runtime.v1.ContainerEventResponse"];
    assert_eq!(name(event, rpc::fields::EVENT_ID), "container_id");
    assert_eq!(name(event, rpc::fields::EVENT_POD_UID), "uid");
    for path in [rpc::fields::EVENT_POD, rpc::fields::EVENT_CONTAINERS] {
        assert_eq!(name(event, path), "id");
    }
}

/// criswitch renames the handler in each field `runtime_handler` of the interface: requests to backends have the
/// backend's names, and replies to clients have the routing table's names. The handlers in `Status` are in a different
/// field, which criswitch writes from the routing table.
#[test]
fn every_handler_in_the_interface_has_the_name_of_its_reader() {
    let interface = Interface::compiled();
    let specs = |specs: &[&[u32]]| -> Vec<Vec<u32>> {
        let handlers = specs
            .iter()
            .map(|spec| [spec, fields::SPEC_HANDLER].concat());
        handlers.collect()
    };
    let of = |paths: &HandlerPaths| {
        let pod = paths.pod.map(<[u32]>::to_vec).into_iter();
        pod.chain(specs(paths.images)).collect::<BTreeSet<_>>()
    };
    for row in ROWS {
        let mut request = match row.goes {
            Goes::Handler(path) | Goes::Image(path, _) => [path.to_vec()].into(),
            Goes::OwnerWithImage(_) => specs(&fields::CREATED_SPECS).into_iter().collect(),
            _ => BTreeSet::new(),
        };
        if let Then::OwnRestored(..) = row.then {
            request.extend(specs(&fields::RESTORED_SPECS));
        }
        let found = interface.handlers(interface.request(row));
        assert_eq!(found, request, "{}: the request", row.name);
        let reply = match (&row.then, &row.goes) {
            (Then::Rename(paths), _) => of(paths),
            (Then::HaveImage(_), _) => of(&fields::IMAGE_STATUS_HANDLERS),
            (Then::List(List::Pods), _) => of(&fields::LISTED_PODS),
            (Then::List(List::Containers), _) => of(&fields::LISTED_CONTAINERS),
            (Then::List(List::Images), _) => of(&fields::LISTED_IMAGES),
            (_, Goes::All(_, Merge::Events)) => of(&fields::EVENT_HANDLERS),
            _ => BTreeSet::new(),
        };
        let found = interface.handlers(interface.reply(row));
        assert_eq!(found, reply, "{}: the reply", row.name);
    }
}
