#pragma once
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <string_view>

namespace recurve {

// Messages are parsed here and not by gRPC, which answers INTERNAL to a string that is not UTF-8
// and does not say which: INVALID_ARGUMENT, with the field's name.
grpc::Status parse(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);
grpc::Status parse(std::string_view bytes, google::protobuf::Message* message);

grpc::ByteBuffer serialise(const google::protobuf::Message& message);

}  // namespace recurve
