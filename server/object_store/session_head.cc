#include "server/object_store/session_head.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "server/identity/cipher.h"
#include "server/identity/hex.h"
#include "server/object_store/object_store.h"

namespace recurve {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic = "RCRVHEAD ";
constexpr size_t kDigits = 16, kNonceDigits = 32;

uint64_t checksum_from(std::string_view digits) {
  uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (digits.size() != kDigits || error != std::errc() || end != digits.data() + digits.size()) {
    throw std::runtime_error("a checksum has 16 hexadecimal digits");
  }
  return value;
}

uint64_t checksum_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

SessionHead head_of(const json& all, HeadForm form) {
  SessionHead head{.form = form,
                   .tenant = all.at("tenant"),
                   .session = all.at("session"),
                   .owner = all.at("owner"),
                   .epoch = all.at("epoch"),
                   .commit = all.at("commit"),
                   .nonce = all.at("nonce"),
                   .record = all.at("record"),
                   .request = all.at("request"),
                   .digest = all.at("digest"),
                   .answer = all.at("answer")};
  const json& blobs = all.at("blobs");
  if (!blobs.is_array() || blobs.size() > kMostBlobs) throw std::runtime_error("too many blobs");
  const std::string folder = blob_folder(head.tenant);
  for (const json& blob : blobs) {
    head.blobs.push_back({.key = blob.at("key"),
                          .bytes = blob.at("bytes"),
                          .checksum = checksum_from(blob.at("checksum").get<std::string>())});
    if (!head.blobs.back().key.starts_with(folder)) {
      throw std::runtime_error("it names a blob of another tenant");
    }
  }
  return head;
}

}  // namespace

std::string head_key(std::string_view tenant, std::string_view session) {
  return fmt::format("sessions/t-{}/s-{}/head", tenant, session);
}

std::string blob_folder(std::string_view tenant) { return fmt::format("blobs/t-{}/", tenant); }

std::string new_blob_key(std::string_view tenant) { return blob_folder(tenant) + new_nonce(); }

bool is_blob_key(std::string_view key) {
  constexpr std::string_view kFolder = "blobs/t-";
  const size_t nonce = std::min(key.rfind('/') + 1, key.size());
  return ObjectStore::is_key(key) && key.starts_with(kFolder) && nonce > kFolder.size() + 1 &&
         std::ranges::count(key, '/') == 2 && key.size() - nonce == kNonceDigits &&
         key.find_first_not_of("0123456789abcdef", nonce) == std::string_view::npos;
}

std::string new_nonce() { return to_hex(random_bytes(kNonceDigits / 2)); }

uint64_t blob_checksum(std::span<const std::string_view> parts) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  for (const std::string_view part : parts) {
    XXH3_64bits_update(state.get(), part.data(), part.size());
  }
  return XXH3_64bits_digest(state.get());
}

std::string head_text(const SessionHead& head) {
  json blobs = json::array();
  for (const RemoteBlob& blob : head.blobs) {
    blobs.push_back({{"key", blob.key},
                     {"bytes", blob.bytes},
                     {"checksum", fmt::format("{:016x}", blob.checksum)}});
  }
  const json all = {{"tenant", head.tenant}, {"session", head.session},  {"owner", head.owner},
                    {"epoch", head.epoch},   {"commit", head.commit},    {"nonce", head.nonce},
                    {"record", head.record}, {"request", head.request},  {"digest", head.digest},
                    {"answer", head.answer}, {"blobs", std::move(blobs)}};
  std::string text;
  try {
    text = all.dump();
  } catch (const json::exception&) {
    throw std::invalid_argument(
        fmt::format("the head of session \"{}\" is not in UTF-8", head.session));
  }
  text =
      fmt::format("{}{} {:016x}\n{}", kMagic, static_cast<int>(head.form), checksum_of(text), text);
  if (text.size() > kMostBytesOfHead || head.blobs.size() > kMostBlobs) {
    throw std::invalid_argument(
        fmt::format("the head of session \"{}\" has {} bytes and {} blobs, at most {} and {} fit",
                    head.session, text.size(), head.blobs.size(), kMostBytesOfHead, kMostBlobs));
  }
  return text;
}

SessionHead parse_any_head(std::string_view text) {
  if (!text.starts_with(kMagic)) throw std::runtime_error("it is no head of a session");
  std::string_view rest = text.substr(kMagic.size());
  const int form = rest.size() > 1 && rest[1] == ' ' ? rest[0] - '0' : 0;
  if (form < static_cast<int>(HeadForm::k1) || form > static_cast<int>(HeadForm::k4)) {
    throw NewerHead("a newer server wrote it: update this one");
  }
  rest.remove_prefix(2);
  try {
    const uint64_t checksum = checksum_from(rest.substr(0, kDigits));
    const std::string_view all = rest.substr(std::min(kDigits + 1, rest.size()));
    if (checksum_of(all) != checksum) throw std::runtime_error("it is damaged");
    return head_of(json::parse(all), static_cast<HeadForm>(form));
  } catch (const json::exception&) {
    throw std::runtime_error("it lacks members");
  }
}

SessionHead parse_head(std::string_view text, std::string_view tenant, std::string_view session) {
  const auto sentence = [&](std::string_view why) {
    return fmt::format("the head of session \"{}\" cannot be used: {}", session, why);
  };
  SessionHead head;
  try {
    head = parse_any_head(text);
  } catch (const NewerHead& error) {
    throw NewerHead(sentence(error.what()));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(sentence(error.what()));
  }
  if (head.tenant != tenant || head.session != session) {
    throw std::runtime_error(sentence(
        fmt::format("it is that of session \"{}\" of tenant \"{}\"", head.session, head.tenant)));
  }
  return head;
}

}  // namespace recurve
