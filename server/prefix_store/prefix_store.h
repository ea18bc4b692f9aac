#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/object_store/object_store.h"
#include "server/object_store/store_seal.h"
#include "server/prefix/shared_prefixes.h"
#include "server/state/state_form.h"

namespace recurve {

// States of prompts in an object store, as objects under the keys of prefix_key.h, in the form of
// server/state. One thread lists what the store has, in intervals, so that a look-up sends no
// request; one reads and one writes. What cannot be used is not asked for again until it was
// written again. Once there is no room for a state, the oldest ones go: one that is of use is
// written again.
//
// A store that does not answer is not used until it can be listed again.
class PrefixStore final : public SharedPrefixes {
 public:
  static constexpr size_t kMostStates = 10'000;  // that are known
  static constexpr size_t kMostReads = 8;        // that wait
  struct Options {
    int64_t most_bytes = 0;        // of all states with this identity
    int64_t most_state_bytes = 0;  // of one, as it is written
    std::chrono::milliseconds interval{5'000};
    // Called on threads of this class: what the store has, and bytes that were sent there or came.
    std::function<void(int64_t states, int64_t bytes)> on_listed = {};
    std::function<void(uint64_t written, uint64_t read)> on_bytes = {};
  };
  // identity: all that decides over the bits of states. seal: null: states are not sealed. The
  // store, whose calls should not be repeated for long, and the seal outlive this. Throws
  // std::system_error if a thread cannot start.
  PrefixStore(ObjectStore& store, StoreSeal* seal, std::string_view identity, Options options);
  ~PrefixStore() override;  // waits for the calls in progress; see ObjectStore::stop()

  // Memory for what is read and written, where a written state takes so many bytes: what is read,
  // and that once it is opened; and what is written, sealed.
  static constexpr int64_t transfer_bytes(int64_t most_state_bytes) { return 3 * most_state_bytes; }

  Found longest(std::string_view tenant, std::span<const PrefixHash> hashes) override;
  bool has(const Key& key) const override;
  bool is_usable() const override;
  bool read(const Key& key, const StateHeader& wanted, NewImage image,
            std::function<void()> prepare, OnRead done) override;
  bool write(const Key& key, StateHeader header, StateImage image,
             std::function<void(bool)> done) override;
  void when_done(std::function<void()> wake) override;
  bool take_done() override;
  void wait() override;

 private:
  struct Listed {
    uint64_t bytes = 0;
    int64_t changed = 0;  // seconds since 1970, by the store's clock
  };
  using IndexKey = std::pair<std::string, std::string>;  // tenant and HASH
  using States = std::map<IndexKey, Listed, std::less<>>;
  // States, and the sum of their bytes.
  class Index {
   public:
    const States& states() const { return states_; }
    uint64_t bytes() const { return bytes_; }
    void set(const IndexKey& key, const Listed& listed);
    void erase(const IndexKey& key);

   private:
    States states_;
    uint64_t bytes_ = 0;
  };
  struct Reading {
    IndexKey key;
    uint64_t bytes;
    StateHeader wanted;
    NewImage image;
    std::function<void()> prepare;
    OnRead done;
  };
  struct Writing {
    IndexKey key;
    StateHeader header;
    StateImage image;
    std::function<void(bool)> done;
  };

  void list();
  std::optional<Index> listed();
  void read();
  Read read_now(const Reading& of);
  Read read_object(const Reading& of);
  std::string opened(const IndexKey& key, std::string text) const;
  void write();
  bool write_now(const Writing& of);
  void make_room(uint64_t bytes);
  void set_unusable();
  void forget(const IndexKey& key, bool refused);
  void observe(double seconds, uint64_t bytes);
  void tell_listed() const;
  std::string object_key(const IndexKey& key) const;
  static std::string context(const IndexKey& key);
  void post(std::function<void()> done);
  void stop();

  ObjectStore& store_;
  StoreSeal* const seal_;
  const std::string identity_;  // its digits
  const Options options_;
  int64_t under_way_ = 0;  // used by the engine's thread

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_, done_changed_;
  Index index_;
  States written_;                       // since the list in progress began, which may lack these
  std::map<IndexKey, int64_t> refused_;  // when those were written that cannot be used
  bool usable_ = false, closed_ = false;
  // What reading takes: so many seconds, and for each byte.
  double latency_ = 0.05, per_byte_ = kFirstPerByte;
  uint64_t queued_bytes_ = 0;
  std::deque<Reading> reads_;
  std::optional<Writing> writing_;
  std::vector<std::function<void()>> done_;
  std::function<void()> wake_;

  static constexpr double kFirstPerByte = 1 / 100e6;

  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace recurve
