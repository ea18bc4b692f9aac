#include "server/prefix_store/prefix_store.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "server/object_store/prefix_key.h"

namespace recurve {
namespace {

using Clock = std::chrono::steady_clock;
using Outcome = ObjectResult::Outcome;

// What a written state takes in addition to its bytes and its ids, about.
constexpr int64_t kFrameBytes = int64_t{64} << 10;
// How much the last measurement counts, and how much of what is known to be slow is forgotten with
// each list, so that it is tried again.
constexpr double kLatest = 0.3, kForgotten = 0.05;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

int64_t now_in_seconds() {
  using std::chrono::system_clock;
  return system_clock::to_time_t(system_clock::now());
}

}  // namespace

PrefixStore::PrefixStore(ObjectStore& store, StoreSeal* seal, std::string_view identity,
                         Options options)
    : store_(store),
      seal_(seal),
      identity_(fmt::format("{:016x}", checksum_of(identity))),
      options_(std::move(options)) {
  const auto start = [this](const char* name, void (PrefixStore::*work)()) {
    threads_.emplace_back([this, name, work] {
      pthread_setname_np(pthread_self(), name);
      (this->*work)();
    });
  };
  try {
    start("prefix-lister", &PrefixStore::list);
    start("prefix-reader", &PrefixStore::read);
    start("prefix-writer", &PrefixStore::write);
  } catch (...) {
    stop();
    throw;
  }
}

PrefixStore::~PrefixStore() { stop(); }

void PrefixStore::stop() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

std::string PrefixStore::object_key(const IndexKey& key) const {
  return prefix_key(identity_, key.first, key.second);
}

// What is sealed belongs to one tenant and prefix.
std::string PrefixStore::context(const IndexKey& key) {
  return fmt::format("prefix/{}/{}", key.first, key.second);
}

void PrefixStore::Index::set(const IndexKey& key, const Listed& listed) {
  Listed& here = states_[key];
  bytes_ += listed.bytes - here.bytes;
  here = listed;
}

void PrefixStore::Index::erase(const IndexKey& key) {
  const auto found = states_.find(key);
  if (found == states_.end()) return;
  bytes_ -= found->second.bytes;
  states_.erase(found);
}

// With the mutex.
void PrefixStore::tell_listed() const {
  if (!options_.on_listed) return;
  options_.on_listed(static_cast<int64_t>(index_.states().size()),
                     static_cast<int64_t>(index_.bytes()));
}

SharedPrefixes::Found PrefixStore::longest(std::string_view tenant,
                                           std::span<const PrefixHash> hashes) {
  const std::lock_guard lock(mutex_);
  if (!usable_) return {};
  std::pair<std::string, std::string> key(std::string(tenant), "");
  for (size_t chunks = hashes.size(); chunks > 0; --chunks) {
    key.second = hashes[chunks - 1].text();
    const auto found = index_.states().find(key);
    if (found == index_.states().end()) continue;
    const auto bytes = static_cast<double>(queued_bytes_ + found->second.bytes);
    return {chunks, latency_ + bytes * per_byte_};
  }
  return {};
}

bool PrefixStore::has(const Key& key) const {
  const std::lock_guard lock(mutex_);
  return index_.states().contains(std::pair(std::string(key.tenant), key.hash.text()));
}

bool PrefixStore::is_usable() const {
  const std::lock_guard lock(mutex_);
  return usable_;
}

bool PrefixStore::read(const Key& key, const StateHeader& wanted, NewImage image,
                       std::function<void()> prepare, OnRead done) {
  const std::lock_guard lock(mutex_);
  const auto found = index_.states().find(std::pair(std::string(key.tenant), key.hash.text()));
  if (found == index_.states().end() || reads_.size() >= kMostReads) return false;
  reads_.push_back({found->first, found->second.bytes, wanted, std::move(image), std::move(prepare),
                    std::move(done)});
  queued_bytes_ += found->second.bytes;
  ++under_way_;
  changed_.notify_all();
  return true;
}

bool PrefixStore::write(const Key& key, StateHeader header, StateImage image,
                        std::function<void(bool)> done) {
  const auto state = static_cast<int64_t>(header.layout.bytes(header.position));
  const auto ids = static_cast<int64_t>(header.answer_ids.size() * sizeof(int32_t));
  const int64_t most = std::min(options_.most_bytes, options_.most_state_bytes);
  if (state + ids + kFrameBytes > most) return false;
  const std::lock_guard lock(mutex_);
  if (writing_) return false;
  writing_ = Writing{{std::string(key.tenant), key.hash.text()},
                     std::move(header),
                     std::move(image),
                     std::move(done)};
  ++under_way_;
  changed_.notify_all();
  return true;
}

void PrefixStore::when_done(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

bool PrefixStore::take_done() {
  std::vector<std::function<void()>> done;
  {
    const std::lock_guard lock(mutex_);
    done = std::exchange(done_, {});
  }
  under_way_ -= static_cast<int64_t>(done.size());
  for (const auto& one : done) one();
  return !done.empty();
}

void PrefixStore::wait() {
  std::unique_lock lock(mutex_);
  done_changed_.wait(lock, [this] { return under_way_ == 0 || !done_.empty(); });
}

// With the mutex.
void PrefixStore::post(std::function<void()> done) {
  done_.push_back(std::move(done));
  done_changed_.notify_all();
  if (wake_) wake_();
}

void PrefixStore::list() {
  std::unique_lock lock(mutex_);
  while (!closed_) {
    written_.clear();
    lock.unlock();
    std::optional<Index> now = listed();
    lock.lock();
    const bool wakes = now && !usable_ && wake_;
    usable_ = now.has_value();
    if (now) {
      for (const auto& [key, changed] : refused_) {
        const auto found = now->states().find(key);
        if (found != now->states().end() && found->second.changed <= changed) now->erase(key);
      }
      index_ = *std::move(now);
      for (const auto& [key, state] : written_) index_.set(key, state);
      per_byte_ = std::max(per_byte_ * (1 - kForgotten), std::min(per_byte_, kFirstPerByte));
      tell_listed();
    }
    if (wakes) wake_();
    changed_.wait_for(lock, options_.interval, [this] { return closed_; });
  }
}

// What the store has; nothing if it does not answer.
std::optional<PrefixStore::Index> PrefixStore::listed() {
  Index index;
  std::string after;
  while (index.states().size() < kMostStates) {
    const Clock::time_point began = Clock::now();
    const ObjectStore::Page page = store_.list(prefix_folder(identity_), after);
    if (!page.result.done()) return std::nullopt;
    const double seconds = seconds_since(began);
    for (const ObjectStore::Listed& one : page.objects) {
      PrefixKeyParts parts;
      if (!parse_prefix_key(one.key, &parts)) continue;
      if (index.states().size() == kMostStates) break;
      index.set({std::string(parts.tenant), std::string(parts.hash)}, {one.bytes, one.changed});
    }
    const std::lock_guard lock(mutex_);
    latency_ += kLatest * (seconds - latency_);
    if (!page.more || page.objects.empty() || closed_) break;
    after = page.objects.back().key;
  }
  return index;
}

void PrefixStore::set_unusable() {
  const std::lock_guard lock(mutex_);
  usable_ = false;
}

void PrefixStore::forget(const IndexKey& key, bool refused) {
  const std::lock_guard lock(mutex_);
  index_.erase(key);
  if (!refused) return;
  if (refused_.size() >= kMostStates) refused_.clear();
  refused_[key] = now_in_seconds();
}

void PrefixStore::observe(double seconds, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const double each =
      std::max(seconds - latency_, 0.0) / static_cast<double>(std::max<uint64_t>(bytes, 1));
  per_byte_ += kLatest * (each - per_byte_);
}

void PrefixStore::read() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !reads_.empty(); });
    if (reads_.empty()) return;
    Reading of = std::move(reads_.front());
    reads_.pop_front();
    lock.unlock();
    Read read = read_now(of);
    lock.lock();
    queued_bytes_ -= of.bytes;
    post([done = std::move(of.done), read = std::move(read)] { done(read); });
  }
}

SharedPrefixes::Read PrefixStore::read_now(const Reading& of) {
  const auto refused = [&](const char* why) {
    forget(of.key, /*refused=*/true);
    return Read{.error = fmt::format("{}: {}", object_key(of.key), why)};
  };
  try {
    return read_object(of);
  } catch (const std::bad_alloc&) {
    return {.error = "out of memory"};
  } catch (const SealError& error) {
    if (error.why() == SealError::Why::kStore) return {.error = error.what()};
    return refused(error.what());
  } catch (const StateError& error) {
    return refused(error.what());
  }
}

// Throws std::bad_alloc, SealError and StateError.
SharedPrefixes::Read PrefixStore::read_object(const Reading& of) {
  const uint64_t most = static_cast<uint64_t>(options_.most_state_bytes);
  if (of.bytes > (seal_ == nullptr ? most : StoreSeal::sealed_bytes(most))) {
    throw StateError(EndReason::kForeignState,
                     fmt::format("it has {} bytes, at most {} are read", of.bytes, most));
  }
  const Clock::time_point began = Clock::now();
  ObjectResult got = store_.get(object_key(of.key), of.bytes);
  if (got.outcome == Outcome::kMissing) {
    forget(of.key, /*refused=*/false);
    return {.absent = true};
  }
  observe(seconds_since(began), of.bytes);
  if (!got.done()) {
    set_unusable();
    return {.error = std::move(got.error)};
  }
  if (options_.on_bytes) options_.on_bytes(0, got.body.size());
  const std::string text = opened(of.key, std::move(got.body));
  const ReadAt read_at = [&](uint64_t offset, std::span<std::byte> to) {
    std::memcpy(to.data(), text.data() + offset, to.size());
  };
  const StateHeader found = read_state_header(text.size(), read_at);
  if (found.position != of.wanted.position || !found.answer ||
      found.answer->digest != of.key.second) {
    throw StateError(EndReason::kForeignState, "it is the state of another prompt");
  }
  of.prepare();
  return {.header = read_state(text.size(), read_at, of.wanted, of.image.rooms)};
}

std::string PrefixStore::opened(const IndexKey& key, std::string text) const {
  if (seal_ != nullptr) return seal_->open(key.first, context(key), text);
  if (!StoreSeal::is_sealed(text)) return text;
  throw SealError(SealError::Why::kKey,
                  "it is sealed: start the server with the --state-keys of the others");
}

void PrefixStore::write() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || writing_; });
    if (!writing_) return;
    lock.unlock();
    bool written = false;
    try {
      written = write_now(*writing_);  // no other thread changes it
    } catch (const std::bad_alloc&) {  // it is not written
    } catch (const SealError&) {
      set_unusable();
    }
    lock.lock();
    std::function<void(bool)> done = std::move(writing_->done);
    writing_.reset();
    post([done = std::move(done), written] { done(written); });
  }
}

bool PrefixStore::write_now(const Writing& of) {
  StateHeader header = of.header;
  header.answer = StateAnswer{.digest = of.key.second, .reason = "length"};
  const StateFrame frame = frame_of(header, of.image);
  std::vector<std::string_view> parts = {frame.front};
  for (const std::string_view part : written_parts(header, of.image)) parts.push_back(part);
  parts.push_back(frame.back);
  std::string sealed;
  if (seal_ != nullptr) {
    seal_->prepare(of.key.first);
    sealed = seal_->seal(of.key.first, context(of.key), parts);
    parts = {sealed};
  }
  uint64_t bytes = 0;
  for (const std::string_view part : parts) bytes += part.size();
  make_room(bytes);
  const ObjectResult put = store_.put(object_key(of.key), parts);
  if (!put.done()) {
    set_unusable();
    return false;
  }
  if (options_.on_bytes) options_.on_bytes(bytes, 0);
  const std::lock_guard lock(mutex_);
  refused_.erase(of.key);
  index_.set(of.key, written_[of.key] = {bytes, now_in_seconds()});
  tell_listed();
  return true;
}

// The oldest ones go.
void PrefixStore::make_room(uint64_t bytes) {
  std::unique_lock lock(mutex_);
  const auto most = static_cast<uint64_t>(options_.most_bytes);
  while (!index_.states().empty() &&
         (index_.states().size() >= kMostStates || index_.bytes() + bytes > most)) {
    const IndexKey oldest = std::ranges::min_element(index_.states(), {}, [](const auto& one) {
                              return one.second.changed;
                            })->first;
    written_.erase(oldest);
    index_.erase(oldest);
    lock.unlock();
    const ObjectResult removed = store_.remove(object_key(oldest));
    if (!removed.done()) return;
    lock.lock();
  }
}

}  // namespace recurve
