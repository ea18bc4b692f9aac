#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// A blob of a session's state: bytes that never change under their key.
struct RemoteBlob {
  std::string key = {};
  uint64_t bytes = 0;
  uint64_t checksum = 0;  // XXH3 of 64 bits, seed 0
  bool operator==(const RemoteBlob&) const = default;
};

// The written form. A server reads all, and writes the first one that can say what there is to
// say: so servers that know only earlier ones serve those sessions too. They refuse others by name.
enum class HeadForm {
  k1 = 1,
  k2 = 2,  // the record says which blob is what
  k3 = 3,  // and which pages of a state are in which blob
  k4 = 4,  // and how many tokens the session can return to
};

// What an object store has of a session, in one object that is only written with a condition:
//
//   "RCRVHEAD ", the form in a digit, a space and the checksum of the JSON text (16 hexadecimal
//   digits), a line feed, and a JSON object with the members "tenant", "session", "owner", "epoch",
//   "commit", "nonce", "record", "request", "digest", "answer" and "blobs": [{"key", "bytes",
//   "checksum" (16 hexadecimal digits)}]
struct SessionHead {
  HeadForm form = HeadForm::k1;
  std::string tenant = {}, session = {};
  std::string owner = {};   // the server that alone may commit
  uint64_t epoch = 0;       // how often a server has taken the session
  uint64_t commit = 0;      // commits since the session was created
  std::string nonce = {};   // of this head alone
  std::string record = {};  // UTF-8, what the session is; empty: it was closed
  // The request that the last commit has answered, what it asked for, and the answer, in UTF-8.
  std::string request = {}, digest = {}, answer = {};
  std::vector<RemoteBlob> blobs = {};

  bool closed() const { return record.empty(); }
  bool operator==(const SessionHead&) const = default;
};

inline constexpr size_t kMostBytesOfHead = size_t{1} << 20;
inline constexpr size_t kMostBlobs = 4096;

// Keys of a session's objects. Names have [A-Za-z0-9._-] only.
std::string head_key(std::string_view tenant, std::string_view session);
std::string blob_folder(std::string_view tenant);  // what keys of its blobs begin with
std::string new_blob_key(std::string_view tenant);
// Whether a server can have written it.
bool is_blob_key(std::string_view key);

std::string new_nonce();

uint64_t blob_checksum(std::span<const std::string_view> parts);

// Throws std::invalid_argument if it has more than kMostBytesOfHead or kMostBlobs, or is not in
// UTF-8.
std::string head_text(const SessionHead& head);
// A newer server has written it.
class NewerHead : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws std::runtime_error with a sentence if the text is no head, is damaged, is that of another
// session or tenant, or NewerHead.
SessionHead parse_head(std::string_view text, std::string_view tenant, std::string_view session);
// A head of any session.
SessionHead parse_any_head(std::string_view text);

}  // namespace recurve
