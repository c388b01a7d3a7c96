//! Changes to the interface, each with the differences that the comparison must report.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
};

pub(crate) type Change = fn(&mut FileDescriptorProto);

pub(crate) const CHANGES: &[(Change, &[&str])] = &[
    (|_| {}, &[]),
    (
        |f| f.package = Some("runtime.v1alpha2".into()),
        &["package: `runtime.v1alpha2`, should be `runtime.v1`"],
    ),
    (
        |f| f.syntax = None,
        &["syntax: `proto2`, should be `proto3`"],
    ),
    (
        |f| drop(service(f, "ImageService").method.pop()),
        &[
            "rpc ImageService.RemoveSecurityProfile: missing, should be `RemoveSecurityProfileRequest -> RemoveSecurityProfileResponse`",
        ],
    ),
    (
        |f| f.service.push(named_service("Extra")),
        &["service Extra: too much"],
    ),
    (
        |f| rpc(f, "Version").client_streaming = Some(true),
        &[
            "rpc RuntimeService.Version: `stream VersionRequest -> VersionResponse`, should be `VersionRequest -> VersionResponse`",
        ],
    ),
    (
        |f| rpc(f, "GetContainerEvents").server_streaming = None,
        &[
            "rpc RuntimeService.GetContainerEvents: `GetEventsRequest -> ContainerEventResponse`, should be `GetEventsRequest -> stream ContainerEventResponse`",
        ],
    ),
    (
        |f| rpc(f, "Version").output_type = Some(".runtime.v1.Mount".into()),
        &[
            "rpc RuntimeService.Version: `VersionRequest -> Mount`, should be `VersionRequest -> VersionResponse`",
        ],
    ),
    (
        |f| f.message_type.retain(|m| m.name() != "StatusRequest"),
        &[
            "field StatusRequest.verbose: missing, should be `bool = 1`",
            "message StatusRequest: missing",
        ],
    ),
    (
        |f| message(f, "Mount").nested_type.push(named_message("Extra")),
        &["message Mount.Extra: too much"],
    ),
    (
        |f| drop(message(f, "Mount").field.remove(8)),
        &["field Mount.image: missing, should be `ImageSpec = 9`"],
    ),
    (
        |f| field(f, "Mount", "image").number = Some(12),
        &["field Mount.image: `ImageSpec = 12`, should be `ImageSpec = 9`"],
    ),
    (
        |f| field(f, "KeyValue", "value").set_type(Type::String),
        &["field KeyValue.value: `string = 2`, should be `bytes = 2`"],
    ),
    (
        |f| field(f, "Mount", "image").set_label(Label::Repeated),
        &["field Mount.image: `repeated ImageSpec = 9`, should be `ImageSpec = 9`"],
    ),
    (
        |f| field(f, "DNSConfig", "servers").set_label(Label::Optional),
        &["field DNSConfig.servers: `string = 1`, should be `repeated string = 1`"],
    ),
    (
        |f| message(f, "ImageSpec").nested_type[0].field[1].set_type(Type::Bytes),
        &[
            "field ImageSpec.annotations: `map<string,bytes> = 2`, should be `map<string,string> = 2`",
        ],
    ),
    (
        |f| put_into_oneof(message(f, "ContainerUser")),
        &[
            "field ContainerUser.linux: `LinuxContainerUser = 1 in oneof user`, should be `LinuxContainerUser = 1`",
        ],
    ),
    (
        |f| enumeration(f, "Protocol").value.push(value("QUIC", 3)),
        &["value Protocol.QUIC: too much, `3`"],
    ),
    (
        |f| enumeration(f, "Protocol").value[1].number = Some(7),
        &["value Protocol.UDP: `7`, should be `1`"],
    ),
    (
        |f| message(f, "SecurityProfile").enum_type[0].name = Some("Kind".into()),
        &[
            "enum SecurityProfile.Kind: too much",
            "enum SecurityProfile.ProfileType: missing",
            "value SecurityProfile.Kind.Localhost: too much, `2`",
            "value SecurityProfile.Kind.OCI: too much, `3`",
            "value SecurityProfile.Kind.RuntimeDefault: too much, `0`",
            "value SecurityProfile.Kind.Unconfined: too much, `1`",
            "value SecurityProfile.ProfileType.Localhost: missing, should be `2`",
            "value SecurityProfile.ProfileType.OCI: missing, should be `3`",
            "value SecurityProfile.ProfileType.RuntimeDefault: missing, should be `0`",
            "value SecurityProfile.ProfileType.Unconfined: missing, should be `1`",
        ],
    ),
];

fn service<'a>(file: &'a mut FileDescriptorProto, name: &str) -> &'a mut ServiceDescriptorProto {
    let mut services = file.service.iter_mut();
    services.find(|s| s.name() == name).unwrap()
}

fn rpc<'a>(file: &'a mut FileDescriptorProto, name: &str) -> &'a mut MethodDescriptorProto {
    let mut rpcs = file.service.iter_mut().flat_map(|s| &mut s.method);
    rpcs.find(|m| m.name() == name).unwrap()
}

pub(crate) fn message<'a>(
    file: &'a mut FileDescriptorProto,
    name: &str,
) -> &'a mut DescriptorProto {
    let mut messages = file.message_type.iter_mut();
    messages.find(|m| m.name() == name).unwrap()
}

fn field<'a>(
    file: &'a mut FileDescriptorProto,
    of: &str,
    name: &str,
) -> &'a mut FieldDescriptorProto {
    let mut fields = message(file, of).field.iter_mut();
    fields.find(|f| f.name() == name).unwrap()
}

pub(crate) fn enumeration<'a>(
    file: &'a mut FileDescriptorProto,
    name: &str,
) -> &'a mut EnumDescriptorProto {
    let mut enums = file.enum_type.iter_mut();
    enums.find(|e| e.name() == name).unwrap()
}

fn put_into_oneof(message: &mut DescriptorProto) {
    message.field[0].oneof_index = Some(0);
    message.oneof_decl.push(OneofDescriptorProto {
        name: Some("user".into()),
        options: None,
    });
}

fn named_service(name: &str) -> ServiceDescriptorProto {
    ServiceDescriptorProto {
        name: Some(name.into()),
        ..Default::default()
    }
}

fn named_message(name: &str) -> DescriptorProto {
    DescriptorProto {
        name: Some(name.into()),
        ..Default::default()
    }
}

fn value(name: &str, number: i32) -> EnumValueDescriptorProto {
    EnumValueDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        options: None,
    }
}
