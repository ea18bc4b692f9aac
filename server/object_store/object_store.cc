#include "server/object_store/object_store.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "server/identity/cipher.h"
#include "server/identity/hex.h"
#include "server/object_store/printable.h"
#include "server/object_store/xml_element.h"

namespace recurve {
namespace {

bool has_only(std::string_view text, std::string_view more) {
  return std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           more.find(c) != std::string_view::npos;
  });
}

std::string sha256_of(std::span<const std::string_view> parts) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  if (context == nullptr) throw std::bad_alloc();
  std::string hash(EVP_MAX_MD_SIZE, '\0');
  unsigned bytes = 0;
  bool done = EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const std::string_view part : parts) {
    done = done && EVP_DigestUpdate(context.get(), part.data(), part.size()) == 1;
  }
  done = done &&
         EVP_DigestFinal_ex(context.get(), reinterpret_cast<uint8_t*>(hash.data()), &bytes) == 1;
  if (!done) throw std::runtime_error("OpenSSL cannot compute SHA-256");
  hash.resize(bytes);
  return to_hex(hash);
}

uint64_t number_of(std::string_view digits) {
  uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

std::string new_probe_key() { return "probe/" + to_hex(random_bytes(16)); }

// A store that has no space. Others are MinIO's and Ceph's codes.
bool is_full(int status, std::string_view code) {
  return status == 507 || code == "XMinioStorageFull" || code == "QuotaExceeded" ||
         code == "XMinioAdminBucketQuotaExceeded";
}

// A call with a condition may have been carried out.
class UnknownOutcome : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

bool is_expired(std::string_view code) {
  return code == "ExpiredToken" || code == "ExpiredTokenException" ||
         code == "TokenRefreshRequired" || code == "InvalidToken" || code == "InvalidAccessKeyId";
}

}  // namespace

// Servers and proxies resolve "." and "..", and some merge slashes.
bool ObjectStore::is_key(std::string_view text) {
  if (text.empty() || text.size() > 900 || !has_only(text, "._/-")) return false;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

ObjectStoreTarget parse_object_store(const std::string& url, const std::string& endpoint,
                                     const std::string& region) {
  ObjectStoreTarget target;
  constexpr std::string_view kScheme = "s3://";
  const std::string rest = url.starts_with(kScheme) ? url.substr(kScheme.size()) : std::string();
  const size_t slash = std::min(rest.find('/'), rest.size());
  target.bucket = rest.substr(0, slash);
  target.prefix = slash < rest.size() ? rest.substr(slash + 1) : std::string();
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  if (target.bucket.size() < 3 || target.bucket.size() > 63 || !has_only(target.bucket, ".-") ||
      target.bucket.find("..") != std::string::npos ||
      (!target.prefix.empty() &&
       (!ObjectStore::is_key(target.prefix) || target.prefix.size() > 256))) {
    throw std::invalid_argument(fmt::format(
        "\"{}\" is no s3://BUCKET/PREFIX: a bucket of 3 to 63 letters, digits, '.' and '-', and a "
        "prefix of at most 256 letters, digits and \"._/-\"",
        url));
  }
  if (!target.prefix.empty()) target.prefix += '/';
  target.endpoint =
      endpoint.empty() ? fmt::format("https://s3.{}.amazonaws.com", region) : endpoint;
  while (target.endpoint.ends_with('/')) target.endpoint.pop_back();
  std::string_view host = target.endpoint;
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (host.starts_with(scheme)) host.remove_prefix(scheme.size());
  }
  if (host.size() == target.endpoint.size() || host.empty() || !has_only(host, ".-:[]")) {
    throw std::invalid_argument(
        fmt::format("\"{}\" is no endpoint: give https://HOST[:PORT]", endpoint));
  }
  return target;
}

struct ObjectStore::Call {
  const char* method;
  const std::string& key;  // empty: of the bucket
  std::string query = {};
  std::span<const std::string_view> parts = {};
  bool has_body = false;
  std::string hash = {};
  size_t most_bytes = 0;
  std::string condition = {};

  bool conditional() const { return !condition.empty(); }
  std::chrono::seconds transfer_time() const {
    constexpr size_t kBytesASecond = size_t{4} << 20;
    size_t seconds = most_bytes / kBytesASecond;
    for (const std::string_view part : parts) seconds += part.size() / kBytesASecond;
    return std::chrono::seconds(std::min<size_t>(seconds, 3600));
  }
};

// What an answer means.
struct ObjectStore::Verdict {
  Outcome outcome;
  bool repeat = false;     // the call may end otherwise if it is repeated
  bool expired = false;    // with other credentials
  bool ambiguous = false;  // it may have been carried out nevertheless
};

ObjectStore::ObjectStore(ObjectStoreTarget target, std::string region,
                         AwsCredentialSource& credentials, HttpClient& http, Options options)
    : target_(std::move(target)),
      region_(std::move(region)),
      credentials_(credentials),
      http_(http),
      options_(options),
      random_(std::random_device()()) {}

ObjectResult ObjectStore::get(const std::string& key, size_t most_bytes) {
  return perform({.method = "GET", .key = key, .hash = sha256_of({}), .most_bytes = most_bytes});
}

ObjectResult ObjectStore::put(const std::string& key, std::span<const std::string_view> parts,
                              const ObjectCondition& condition) {
  return perform({.method = "PUT",
                  .key = key,
                  .parts = parts,
                  .has_body = true,
                  .hash = sha256_of(parts),
                  .condition = condition.header});
}

ObjectResult ObjectStore::remove(const std::string& key, const ObjectCondition& condition) {
  ObjectResult result = perform(
      {.method = "DELETE", .key = key, .hash = sha256_of({}), .condition = condition.header});
  if (result.outcome == Outcome::kMissing) result.outcome = Outcome::kDone;
  return result;
}

// The query is in the order in which it is signed.
ObjectStore::Page ObjectStore::list(const std::string& begins, const std::string& after) {
  constexpr size_t kMostBytes = size_t{4} << 20;
  const std::string none;
  std::string query = "list-type=2&max-keys=1000&prefix=" + url_escaped(target_.prefix + begins);
  if (!after.empty()) query += "&start-after=" + url_escaped(target_.prefix + after);
  Page page{perform({.method = "GET",
                     .key = none,
                     .query = std::move(query),
                     .hash = sha256_of({}),
                     .most_bytes = kMostBytes})};
  if (!page.result.done()) return page;
  std::string_view rest = page.result.body;
  page.more = xml_element(rest, "IsTruncated") == "true";
  constexpr std::string_view kEnd = "</Contents>";
  for (size_t end; (end = rest.find(kEnd)) != std::string_view::npos;
       rest.remove_prefix(end + kEnd.size())) {
    const std::string_view one = xml_element(rest.substr(0, end + kEnd.size()), "Contents");
    const std::string key = xml_unescaped(xml_element(one, "Key"));
    if (!key.starts_with(target_.prefix)) {
      page.result = {.error = fmt::format("{} lists \"{}\", which was not asked for",
                                          target_.endpoint, printable(key))};
      return page;
    }
    page.objects.push_back({.key = key.substr(target_.prefix.size()),
                            .bytes = number_of(xml_element(one, "Size")),
                            .changed = xml_time(xml_element(one, "LastModified")).value_or(0),
                            .etag = xml_unescaped(xml_element(one, "ETag"))});
  }
  page.more = page.more && !page.objects.empty();
  return page;
}

// A call with a condition is repeated like any other: carried out twice, the second time its
// condition is not met. So if that is the answer after an ambiguous one, it may be the first that
// was carried out.
ObjectResult ObjectStore::perform(const Call& call) {
  if (call.query.empty() && !is_key(call.key)) {
    throw std::invalid_argument(fmt::format("\"{}\" is no key of an object", call.key));
  }
  const Clock::time_point deadline = Clock::now() + options_.patience + call.transfer_time();
  bool renewed = false, ambiguous = false;
  for (int attempt = 0;; ++attempt) {
    AwsCredentials credentials;
    try {
      credentials = credentials_.current();
    } catch (const std::runtime_error& error) {
      return {.outcome = ambiguous ? Outcome::kUnknown : Outcome::kFailed, .error = error.what()};
    }
    HttpResponse answer = send(call, credentials, deadline);
    Verdict verdict = judge(call, &answer);
    ambiguous = ambiguous || (verdict.ambiguous && call.conditional());
    if (verdict.expired) {
      credentials_.refuse(credentials);
      verdict.repeat = !std::exchange(renewed, true);
    }
    if (verdict.repeat && pause(attempt, answer.retry_after, deadline)) continue;
    if (verdict.outcome != Outcome::kDone && ambiguous) verdict.outcome = Outcome::kUnknown;
    ObjectResult result{.outcome = verdict.outcome};
    if (result.done()) {
      result.body = std::move(answer.body);
      result.etag = std::move(answer.etag);
    } else {
      result.error = sentence(call, answer);
    }
    return result;
  }
}

HttpResponse ObjectStore::send(const Call& call, const AwsCredentials& credentials,
                               Clock::time_point deadline) {
  std::vector<std::string> headers = {"x-amz-content-sha256: " + call.hash};
  if (call.has_body) headers.push_back("Content-Type: application/octet-stream");
  if (!credentials.session_token.empty()) {
    headers.push_back("x-amz-security-token: " + credentials.session_token);
  }
  if (call.conditional()) headers.push_back(call.condition);
  return http_.send(
      {.method = call.method,
       .url = call.query.empty()
                  ? fmt::format("{}/{}/{}{}", target_.endpoint, target_.bucket, target_.prefix,
                                call.key)
                  : fmt::format("{}/{}?{}", target_.endpoint, target_.bucket, call.query),
       .headers = std::move(headers),
       .body = call.parts,
       .has_body = call.has_body,
       .most_bytes = call.most_bytes,
       .sign = &credentials,
       .region = region_},
      deadline);
}

ObjectStore::Verdict ObjectStore::judge(const Call& call, HttpResponse* answer) const {
  const int status = answer->status;
  const std::string_view code = xml_element(answer->body, "Code");
  if (status == 0) {
    return {.outcome = Outcome::kFailed, .repeat = !answer->permanent, .ambiguous = answer->sent};
  }
  if (status >= 200 && status < 300) return {.outcome = Outcome::kDone};
  if (status == 412) return {.outcome = Outcome::kNotMet};
  if (status == 404 && code != "NoSuchBucket") {
    return {.outcome = call.conditional() ? Outcome::kNotMet : Outcome::kMissing};
  }
  if ((status == 400 || status == 403) && is_expired(code)) {
    return {.outcome = Outcome::kFailed, .expired = true};
  }
  // 409: another write of the object was in progress, and this one was not carried out.
  const bool refused = status == 409 || status == 429;
  const bool repeat = !is_full(status, code) && (refused || status == 408 || status >= 500);
  return {.outcome = Outcome::kFailed, .repeat = repeat, .ambiguous = repeat && !refused};
}

std::string ObjectStore::sentence(const Call& call, const HttpResponse& answer) const {
  const std::string where = fmt::format("{} of {} in bucket {} at {}", call.method, call.key,
                                        target_.bucket, target_.endpoint);
  if (answer.status == 0) return fmt::format("{}: {}", where, answer.problem);
  const std::string_view code = xml_element(answer.body, "Code");
  std::string advice;
  if (answer.status == 403) advice = ": check the credentials and their rights";
  if (is_full(answer.status, code)) advice = ": the store is full: add space or raise its quota";
  if (code == "RequestTimeTooSkewed") advice = ": set this machine's clock";
  if (code == "NoSuchBucket") advice = ": create the bucket";
  if (code == "SignatureDoesNotMatch") advice = ": the secret key is not that of the key id";
  if (answer.status / 100 == 3) advice = ": the bucket is elsewhere, or not served at the endpoint";
  if (!answer.region.empty() && answer.region != region_) {
    advice = fmt::format(": set AWS_REGION to {}", printable(answer.region));
  }
  return fmt::format("{}: HTTP {} {}{}", where, answer.status, printable(code), advice);
}

// False: there is no time for it, or the store is stopped.
bool ObjectStore::pause(int attempt, std::chrono::milliseconds at_least,
                        Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto longest =
      std::min(options_.longest_pause, options_.first_pause * (1 << std::min(attempt, 16)));
  std::uniform_int_distribution<int64_t> some(longest.count() / 2, longest.count());
  const auto until = Clock::now() + std::max(at_least, std::chrono::milliseconds(some(random_)));
  if (until >= deadline) return false;
  return !stopping_.wait_until(lock, until, [this] { return stopped_; });
}

void ObjectStore::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stopping_.notify_all();
}

// If an answer is lost, it is unknown what the store has done: the next attempt has another key.
ObjectResult ObjectStore::for_each(const std::string& begins,
                                   const std::function<void(const Listed&)>& visit) {
  std::string after;
  while (true) {
    Page page = list(begins, after);
    if (!page.result.done()) return std::move(page.result);
    for (const Listed& one : page.objects) visit(one);
    if (!page.more || page.objects.empty()) return std::move(page.result);
    after = page.objects.back().key;
  }
}

void ObjectStore::check() {
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    try {
      return probe();
    } catch (const UnknownOutcome&) {
      if (attempt == kAttempts) throw;
    }
  }
}

bool ObjectStore::removes_on_condition() {
  const std::string key = new_probe_key();
  const std::string_view first[] = {"first"}, second[] = {"second"};
  const ObjectResult made = put(key, first);
  expect_done(made, "create an object");
  expect_done(put(key, second), "replace an object");
  const ObjectResult removed = remove(key, ObjectCondition::matches(made.etag));
  expect_done(remove(key), "remove an object");
  return removed.outcome == Outcome::kNotMet;
}

void ObjectStore::probe() {
  const std::string key = new_probe_key();
  const std::string_view first[] = {"first"}, second[] = {"second"};
  const ObjectResult made = put(key, first, ObjectCondition::is_new());
  expect_done(made, "create an object");
  if (made.etag.empty()) {
    throw std::runtime_error(fmt::format("{} gives no ETag: use another store", target_.endpoint));
  }
  expect_not_met(put(key, second, ObjectCondition::is_new()), "If-None-Match");
  const ObjectResult replaced = put(key, second, ObjectCondition::matches(made.etag));
  expect_done(replaced, "replace an object");
  expect_not_met(put(key, first, ObjectCondition::matches(made.etag)), "If-Match");
  const ObjectResult found = get(key, 64);
  expect_done(found, "read an object");
  if (found.body != second[0] || found.etag != replaced.etag) {
    throw std::runtime_error(fmt::format(
        "{} does not return what was written last: use another store", target_.endpoint));
  }
  expect_done(remove(key), "remove an object");
}

void ObjectStore::expect_done(const ObjectResult& result, const char* what) const {
  if (result.done()) return;
  const std::string sentence = fmt::format("cannot {}: {}", what, result.error);
  if (result.outcome == Outcome::kUnknown) throw UnknownOutcome(sentence);
  throw std::runtime_error(sentence);
}

void ObjectStore::expect_not_met(const ObjectResult& result, const char* condition) const {
  if (result.outcome == Outcome::kNotMet) return;
  if (!result.done()) expect_done(result, "test conditional writes");
  throw std::runtime_error(fmt::format(
      "{} ignores {}: two servers could own a session; use a store with conditional writes",
      target_.endpoint, condition));
}

}  // namespace recurve
