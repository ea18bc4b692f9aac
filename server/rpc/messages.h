#pragma once
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "server/request/refusal.h"

namespace recurve {

// Bytes that values may take, of a message of so many.
constexpr size_t most_bytes_of_values(size_t message) { return 4 * message + (size_t{8} << 20); }

// Messages are parsed here and not by gRPC, which answers INTERNAL to a string that is not UTF-8
// and does not say which: kInvalid, with the field's name. So is a message of values that would
// take more than most_bytes_of_values() of it, before they do.
Refused parse(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);
Refused parse(std::string_view bytes, google::protobuf::Message* message);

// The string that a message begins with, without parsing the rest; empty where it does not begin
// with that field, or the string is longer than `most` bytes. Libraries write fields in the order
// of their numbers, so this finds a field of number 1 that is set.
std::string leading_string(const grpc::ByteBuffer& message, int field, size_t most);

grpc::ByteBuffer serialise(const google::protobuf::Message& message);

}  // namespace recurve
