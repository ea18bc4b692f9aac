#include "server/rpc/messages.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/text/utf8.h"

namespace recurve {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;
using google::protobuf::io::CodedInputStream;

// The dotted name of the first string that is not UTF-8; empty if there is none. Reads the wire
// format without a type, as parsing has failed.
std::string invalid_string(const std::string& bytes, const Descriptor& type) {
  UnknownFieldSet fields;
  if (!fields.ParseFromString(bytes)) return {};
  for (int i = 0; i < fields.field_count(); ++i) {
    const UnknownField& value = fields.field(i);
    const FieldDescriptor* field = type.FindFieldByNumber(value.number());
    if (field == nullptr || value.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    const std::string& content = value.length_delimited();
    if (field->type() == FieldDescriptor::TYPE_STRING && !is_valid_utf8(content)) {
      return field->name();
    }
    if (field->type() != FieldDescriptor::TYPE_MESSAGE) continue;
    const std::string inner = invalid_string(content, *field->message_type());
    if (!inner.empty()) return field->name() + "." + inner;
  }
  return {};
}

// Memory of values: an empty message, a string without its text, any other value, and a value of an
// unknown field.
constexpr size_t kMessageBytes = 256, kStringBytes = 64, kNumberBytes = 8, kUnknownBytes = 32;

// Adds the memory of a message's parsed fields, until it exceeds `most`. Stops at malformed bytes,
// which parsing reports.
void count_values(std::string_view bytes, const Descriptor& type, int levels, size_t most,
                  size_t* count) {
  using google::protobuf::internal::WireFormatLite;
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  while (*count <= most) {
    const uint32_t tag = in.ReadTag();
    if (tag == 0) return;
    const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      *count += field != nullptr ? kNumberBytes : kUnknownBytes;
      if (!WireFormatLite::SkipField(&in, tag)) return;
      continue;
    }
    uint32_t size = 0;
    if (!in.ReadVarint32(&size)) return;
    const auto begin = static_cast<size_t>(in.CurrentPosition());
    if (!in.Skip(static_cast<int>(size))) return;
    const bool is_message =
        field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE && levels > 0;
    *count += is_message ? kMessageBytes : kStringBytes;
    if (!is_message) continue;
    count_values(bytes.substr(begin, size), *field->message_type(), levels - 1, most, count);
  }
}

}  // namespace

Refused parse(std::string_view bytes, google::protobuf::Message* message) {
  constexpr int kMostLevels = 16;  // more than any message type here has
  const size_t most = most_bytes_of_values(bytes.size());
  size_t count = 0;
  count_values(bytes, *message->GetDescriptor(), kMostLevels, most, &count);
  if (count > most) {
    return invalid("",
                   "the message must have fewer values: decoded they would take more than {} MB",
                   most >> 20);
  }
  {
    // The client gets the error; protobuf would write it to standard error.
    const google::protobuf::LogSilencer silence;
    if (message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return {};
  }
  const std::string field = invalid_string(std::string(bytes), *message->GetDescriptor());
  const std::string& type = message->GetDescriptor()->name();
  if (field.empty()) return invalid("", "the message is not a {}", type);
  return invalid(field, "{} must be valid UTF-8", field);
}

Refused parse(const grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  grpc::Slice one;
  if (buffer.TrySingleSlice(&one).ok()) {
    return parse(std::string_view(reinterpret_cast<const char*>(one.begin()), one.size()), message);
  }
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) {
    return refuse(EndReason::kInternal, "the message cannot be read");
  }
  std::string bytes;
  bytes.reserve(buffer.Length());
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return parse(bytes, message);
}

std::string leading_string(const grpc::ByteBuffer& message, int field, size_t most) {
  constexpr size_t kTagAndSize = 3;  // bytes, for strings of up to 2^14 - 1
  // Reading does not change the buffer; the reader has no const constructor.
  grpc::ProtoBufferReader reader(const_cast<grpc::ByteBuffer*>(&message));
  std::string head;
  const void* part = nullptr;
  int size = 0;
  while (head.size() < kTagAndSize + most && reader.Next(&part, &size)) {
    head.append(static_cast<const char*>(part),
                std::min(static_cast<size_t>(size), most + kTagAndSize));
  }
  const auto byte = [&](size_t at) -> size_t {
    return at < head.size() ? static_cast<unsigned char>(head[at]) : 0;
  };
  constexpr size_t kLengthDelimited = 2, kMore = 128;  // of the wire format
  if (byte(0) != static_cast<size_t>(field) * 8 + kLengthDelimited) return {};
  const bool two_bytes = byte(1) >= kMore;
  if (two_bytes && byte(2) >= kMore) return {};
  const size_t length = two_bytes ? byte(1) - kMore + kMore * byte(2) : byte(1);
  const size_t begin = two_bytes ? 3 : 2;
  return length <= most && begin + length <= head.size() ? head.substr(begin, length) : "";
}

grpc::ByteBuffer serialize(const google::protobuf::Message& message) {
  grpc::Slice slice(message.ByteSizeLong());
  // The slice is not shared yet.
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace recurve
