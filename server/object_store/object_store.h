#pragma once
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/object_store/aws_credentials.h"
#include "server/object_store/http_client.h"

namespace recurve {

// A place in a store that speaks S3's protocol.
struct ObjectStoreTarget {
  std::string endpoint = {};  // "https://HOST[:PORT]"
  std::string bucket = {};
  std::string prefix = {};  // "" or "PART/.../": what every key begins with
};
// url: s3://BUCKET[/PREFIX]; endpoint: http[s]://HOST[:PORT], or empty for AWS's own of the region.
// Throws std::invalid_argument with a sentence.
ObjectStoreTarget parse_object_store(const std::string& url, const std::string& endpoint,
                                     const std::string& region);

struct ObjectResult {
  enum class Outcome {
    kDone,
    kMissing,  // get: there is no such object
    kNotMet,   // put, remove: the condition is not met, nothing was changed
    kFailed,   // nothing was changed
    kUnknown,  // with a condition: it may have been carried out, now or within seconds
  };
  Outcome outcome = Outcome::kFailed;
  std::string body = {}, etag = {};
  std::string error = {};  // if it is not done: a sentence without credentials

  bool done() const { return outcome == Outcome::kDone; }
};

// A condition of a put or remove; by default there is none.
struct ObjectCondition {
  static ObjectCondition is_new() { return {"If-None-Match: *"}; }
  static ObjectCondition matches(const std::string& etag) { return {"If-Match: " + etag}; }
  std::string header = {};
};

// Objects in a bucket, by keys of [A-Za-z0-9._/-], addressed as ENDPOINT/BUCKET/PREFIX + key. Calls
// block, and are repeated with growing pauses while the store may become able to answer, for
// `patience` at most and a second for each 4 MiB. Any thread.
class ObjectStore {
 public:
  struct Options {
    std::chrono::milliseconds patience{20'000};
    std::chrono::milliseconds first_pause{50};       // before a call is repeated; then doubled
    std::chrono::milliseconds longest_pause{2'000};  // but a store that names a time is given that
  };
  // The others outlive the store.
  ObjectStore(ObjectStoreTarget target, std::string region, AwsCredentialSource& credentials,
              HttpClient& http, Options options);

  static bool is_key(std::string_view text);

  // An object of at most most_bytes.
  ObjectResult get(const std::string& key, size_t most_bytes);
  ObjectResult put(const std::string& key, std::span<const std::string_view> parts,
                   const ObjectCondition& condition = {});
  // Done too if there is no such object, unless there is a condition.
  ObjectResult remove(const std::string& key, const ObjectCondition& condition = {});

  // The objects whose keys begin so, in the order of the keys: at most a thousand after the key
  // `after`. Keys are without the target's prefix, and those that others wrote can have any
  // characters.
  struct Listed {
    std::string key = {};
    uint64_t bytes = 0;
    int64_t changed = 0;  // seconds since 1970, by the store's clock
    std::string etag = {};
  };
  struct Page {
    ObjectResult result = {};
    std::vector<Listed> objects = {};
    bool more = false;
  };
  Page list(const std::string& begins, const std::string& after = "");
  // All of them. Some may have been visited if it is not done.
  ObjectResult for_each(const std::string& begins, const std::function<void(const Listed&)>& visit);

  // Writes, reads and removes an object. Throws std::runtime_error with a sentence if the store
  // cannot be used: unreachable, without rights, or if it does not apply conditions, without which
  // two servers could both believe that a session is theirs.
  void check();
  // Whether remove() applies conditions, which not all stores do that check() passes. Writes and
  // removes an object. Throws like check().
  bool removes_on_condition();

  // Calls in progress, and later ones, are not repeated any more.
  void stop();

  const ObjectStoreTarget& target() const { return target_; }

 private:
  using Outcome = ObjectResult::Outcome;
  using Clock = std::chrono::steady_clock;
  struct Call;
  struct Verdict;
  ObjectResult perform(const Call& call);
  HttpResponse send(const Call& call, const AwsCredentials& credentials,
                    Clock::time_point deadline);
  Verdict judge(const Call& call, HttpResponse* answer) const;
  std::string sentence(const Call& call, const HttpResponse& answer) const;
  bool pause(int attempt, std::chrono::milliseconds at_least, Clock::time_point deadline);
  void probe();
  void expect_done(const ObjectResult& result, const char* what) const;
  void expect_not_met(const ObjectResult& result, const char* condition) const;

  const ObjectStoreTarget target_;
  const std::string region_;
  AwsCredentialSource& credentials_;
  HttpClient& http_;
  const Options options_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable stopping_;
  bool stopped_ = false;
  std::minstd_rand random_;
};

}  // namespace recurve
