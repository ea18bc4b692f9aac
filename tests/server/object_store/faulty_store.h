#pragma once
#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/object_store/object_store.h"
#include "tests/server/object_store/scripted_server.h"

namespace recurve {

// A store in memory that applies conditions, and treats some requests as a broken network or server
// would.
class FaultyStore {
 public:
  enum class Fault {
    kNone,
    kNotReceived,   // the connection breaks, the request has no effect
    kAnswerLost,    // it is carried out, and the connection breaks
    kReceivedLate,  // the connection breaks, and it is carried out after the next request
    kBusy,          // it is refused with 503
    kForbidden,     // it is refused with 403
  };

  FaultyStore() : server_([this](const auto& request, int) { return answer(request); }) {}

  std::string url() const { return server_.url(); }
  // So many requests, from the one of that number from now on, which is 1.
  void fail(int number, int count, Fault fault) {
    const std::lock_guard lock(mutex_);
    first_ = number;
    end_ = number + count;
    fault_ = fault;
    requests_ = 0;
  }
  // Calls the function once, before the request of that number from now on, which is 1. It may use
  // the store.
  void before(int number, std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    called_before_ = number;
    call_ = std::move(call);
    requests_ = 0;
  }
  // A DELETE has no conditions, as with some stores.
  void ignore_conditions_of_delete() {
    const std::lock_guard lock(mutex_);
    deletes_anything_ = true;
  }
  int requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  // Requests wait until let_all_through().
  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  // The paths behind the bucket of all requests so far, once there are so many.
  std::vector<std::string> arrived(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_.size() >= count; });
    return arrived_;
  }
  void let_all_through() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  // The texts of all objects by the path behind the bucket, once requests that are late have come.
  std::map<std::string, std::string> objects() {
    const std::lock_guard lock(mutex_);
    carry_out_late();
    std::map<std::string, std::string> texts;
    for (const auto& [key, object] : objects_) texts[key] = object.text;
    return texts;
  }
  void put(const std::string& key, const std::string& text) {
    const std::lock_guard lock(mutex_);
    objects_[key] = {text, ++versions_};
  }

 private:
  using Request = ScriptedServer::Request;
  struct Object {
    std::string text;
    int version = 0;
    std::string etag() const { return fmt::format("\"v{}\"", version); }
  };

  std::string answer(const Request& request) {
    std::unique_lock lock(mutex_);
    if (call_ && requests_ + 1 == called_before_) {
      const auto call = std::exchange(call_, nullptr);
      lock.unlock();
      call();
      lock.lock();
    }
    arrived_.push_back(key_of(request));
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_; });
    const bool fails = ++requests_ >= first_ && requests_ < end_;
    const Fault fault = fails ? fault_ : Fault::kNone;
    if (fault == Fault::kBusy) return ScriptedServer::error("503 Slow Down", "SlowDown");
    if (fault == Fault::kForbidden) return ScriptedServer::error("403 Forbidden", "AccessDenied");
    if (fault == Fault::kNotReceived) return "";
    if (fault == Fault::kReceivedLate) {
      late_.push_back(request);
      return "";
    }
    std::string answer = carry_out(request);
    carry_out_late();
    return fault == Fault::kAnswerLost ? "" : answer;
  }

  void carry_out_late() {
    for (const Request& request : std::exchange(late_, {})) carry_out(request);
  }

  static std::string header(const Request& request, const std::string& name) {
    const size_t at = request.head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return {};
    const size_t begin = at + name.size() + 4;
    return request.head.substr(begin, request.head.find("\r\n", begin) - begin);
  }

  static std::string key_of(const Request& request) {
    const size_t begin = request.head.find("/bucket/") + 8;
    return request.head.substr(begin, request.head.find(' ', begin) - begin);
  }

  // All at once, and changed in 2001.
  std::string list(const Request& request) {
    const size_t begin = request.head.find("prefix=") + 7;
    std::string prefix = request.head.substr(begin, request.head.find(' ', begin) - begin);
    for (size_t at; (at = prefix.find("%2F")) != std::string::npos;) prefix.replace(at, 3, "/");
    std::string text = "<ListBucketResult><IsTruncated>false</IsTruncated>";
    for (const auto& [key, object] : objects_) {
      if (!key.starts_with(prefix)) continue;
      text += fmt::format(
          "<Contents><Key>{}</Key><LastModified>2001-01-01T00:00:00Z</LastModified>"
          "<ETag>&quot;v{}&quot;</ETag><Size>{}</Size></Contents>",
          key, object.version, object.text.size());
    }
    return ScriptedServer::answer("200 OK", text + "</ListBucketResult>");
  }

  std::string carry_out(const Request& request) {
    if (request.head.starts_with("GET /bucket?")) return list(request);
    const std::string key = key_of(request);
    const auto found = objects_.find(key);
    const bool exists = found != objects_.end();
    if (request.head.starts_with("DELETE ")) {
      const std::string match = header(request, "If-Match");
      if (!match.empty() && !deletes_anything_ && (!exists || found->second.etag() != match)) {
        return ScriptedServer::error("412 Precondition Failed", "PreconditionFailed");
      }
      objects_.erase(key);
      return ScriptedServer::answer("204 No Content");
    }
    if (request.head.starts_with("PUT ")) {
      const std::string match = header(request, "If-Match");
      const bool met = header(request, "If-None-Match").empty() || !exists;
      if (!met || (!match.empty() && (!exists || found->second.etag() != match))) {
        return ScriptedServer::error("412 Precondition Failed", "PreconditionFailed");
      }
      objects_[key] = {request.body, ++versions_};
      return ScriptedServer::answer("200 OK", "", "ETag: " + objects_[key].etag() + "\r\n");
    }
    if (!exists) return ScriptedServer::error("404 Not Found", "NoSuchKey");
    return ScriptedServer::answer("200 OK", found->second.text,
                                  "ETag: " + found->second.etag() + "\r\n");
  }

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<std::string> arrived_;
  bool held_ = false;
  std::map<std::string, Object> objects_;
  std::vector<Request> late_;
  int versions_ = 0, requests_ = 0, first_ = 0, end_ = 0, called_before_ = 0;
  std::function<void()> call_;
  bool deletes_anything_ = false;
  Fault fault_ = Fault::kNone;
  ScriptedServer server_;
};

// What a server has of such a store, which outlives it.
struct StoreUser {
  explicit StoreUser(const FaultyStore& at, const ObjectStore::Options& options = {})
      : store(parse_object_store("s3://bucket", at.url(), "eu-1"), "eu-1", *credentials, http,
              options) {}

  HttpClient http{{}};
  const std::unique_ptr<AwsCredentialSource> credentials =
      find_aws_credentials({.key_id = "a", .secret = "b"}, "", http);
  ObjectStore store;
};

}  // namespace recurve
