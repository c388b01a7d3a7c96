//! The interface as `crates/proto` compiled it.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    ServiceDescriptorProto,
};

use crate::proto::CRI;
use crate::{Interface, declaration, signature};

/// The one file in the descriptor set: the CRI's proto file imports nothing.
pub(crate) fn compiled_file() -> FileDescriptorProto {
    let [file] = CRI.file.as_slice() else {
        panic!("{} files in the descriptor set", CRI.file.len());
    };
    file.clone()
}

pub(crate) fn read_file(file: &FileDescriptorProto) -> Interface {
    let mut all = Interface::new();
    all.insert("package".into(), file.package().into());
    let syntax = file.syntax.as_deref().unwrap_or("proto2");
    all.insert("syntax".into(), syntax.into());
    for service in &file.service {
        read_service(service, &mut all);
    }
    for message in &file.message_type {
        read_message(message.name(), message, &mut all);
    }
    for enumeration in &file.enum_type {
        read_enum(enumeration.name(), enumeration, &mut all);
    }
    all
}

fn read_service(service: &ServiceDescriptorProto, all: &mut Interface) {
    all.insert(format!("service {}", service.name()), String::new());
    for rpc in &service.method {
        let what = format!("rpc {}.{}", service.name(), rpc.name());
        let how = signature(
            unqualified(rpc.input_type()),
            rpc.client_streaming(),
            unqualified(rpc.output_type()),
            rpc.server_streaming(),
        );
        all.insert(what, how);
    }
}

fn read_message(name: &str, message: &DescriptorProto, all: &mut Interface) {
    all.insert(format!("message {name}"), String::new());
    for field in &message.field {
        let what = format!("field {name}.{}", field.name());
        all.insert(what, read_field(name, message, field));
    }
    for nested in message.nested_type.iter().filter(|m| !is_map_entry(m)) {
        read_message(&format!("{name}.{}", nested.name()), nested, all);
    }
    for nested in &message.enum_type {
        read_enum(&format!("{name}.{}", nested.name()), nested, all);
    }
}

fn read_field(of: &str, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let oneof = field
        .oneof_index
        .map(|i| message.oneof_decl[i as usize].name());
    if let Some(map) = map_type(of, message, field) {
        return declaration("", &map, field.number(), oneof);
    }
    let label = match field.label() {
        Label::Repeated => "repeated ",
        Label::Required => "required ",
        Label::Optional if field.proto3_optional() => "optional ",
        Label::Optional => "",
    };
    declaration(label, &type_name(field), field.number(), oneof)
}

fn read_enum(name: &str, enumeration: &EnumDescriptorProto, all: &mut Interface) {
    all.insert(format!("enum {name}"), String::new());
    for value in &enumeration.value {
        let what = format!("value {name}.{}", value.name());
        all.insert(what, value.number().to_string());
    }
}

/// The type of a map field; `None` for any other field. A map is a repeated field, whose type is a nested message that
/// the compiler generates.
fn map_type(of: &str, message: &DescriptorProto, field: &FieldDescriptorProto) -> Option<String> {
    let entry = message.nested_type.iter().find(|nested| {
        is_map_entry(nested) && type_name(field) == format!("{of}.{}", nested.name())
    })?;
    let [key, value] = entry.field.as_slice() else {
        panic!("a map entry has a key and a value: {entry:?}");
    };
    Some(format!("map<{},{}>", type_name(key), type_name(value)))
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|o| o.map_entry())
}

/// The type as a .proto file writes it.
fn type_name(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => unqualified(field.type_name()).to_owned(),
        scalar => scalar
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
    }
}

fn unqualified(name: &str) -> &str {
    name.trim_start_matches(".runtime.v1.")
}
