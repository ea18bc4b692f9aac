#pragma once
#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "server/request/refusal.h"

namespace recurve {

// The limit of memory for the values of a message of that size.
constexpr size_t most_bytes_of_values(size_t message) { return 4 * message + (size_t{8} << 20); }

// gRPC's own parsing answers INTERNAL to a string that is not UTF-8 and does not name it. These
// refuse it with kInvalid and the field's name. They also refuse a message whose values would take
// more than most_bytes_of_values(), before the memory is allocated.
Refused parse(const grpc::ByteBuffer& buffer, google::protobuf::Message* message);
Refused parse(std::string_view bytes, google::protobuf::Message* message);

// The string at the start of a message, without parsing the rest; empty if the message does not
// start with that field, or the string is longer than `most` bytes. Libraries write fields in the
// order of their numbers, so this finds field 1.
std::string leading_string(const grpc::ByteBuffer& message, int field, size_t most);

grpc::ByteBuffer serialize(const google::protobuf::Message& message);

}  // namespace recurve
