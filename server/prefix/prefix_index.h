#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/state/state_image.h"
#include "server/request/prefix_use.h"

namespace recurve {

class StoredState;

// Which prompts have been seen, chunk by chunk, and the states that were kept of them: a tree for
// each owner, with a node for every chunk, that holds the chunk's ids, so that what is found has
// begun with the same tokens, one by one, and not with others of the same hash. Not thread-safe.
//
// A state is kept where a prompt ends, where two prompts part (seen when the second one comes,
// which passes there anyway), where its messages or its client say, and every kSparse tokens as
// long as half of the memory is free. The one to make room is that of the least value: how often it
// was used times the tokens that it spares beyond the nearest state before it, counted from a clock
// that moves on with what goes, so that what was worth much once goes too (GDSF). Only the state
// that was used gains by it, not those before it.
//
// The owner of the index may write states elsewhere while they are here. The index knows only that
// it has offered them.
class PrefixIndex {
 public:
  using Image = StateImage;
  using Owner = uint64_t;
  static constexpr int64_t kSparse = 8192;

  struct Options {
    int64_t bytes = 0;        // of states and of the tree together, at most
    int64_t state_bytes = 0;  // what a state takes, without pages
    int64_t page_bytes = 0;   // and for each page; 0: states do not grow
    int chunk = 1;            // states are found and kept at multiples of it
    int64_t least_gain = 1;  // a state is kept if it spares so many tokens beyond the one before it
    int64_t least_offered_gain = 1;  // one is offered to be written, if it spares so many
  };
  explicit PrefixIndex(const Options& options);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  struct Found {
    int64_t tokens = 0;  // that the state has absorbed
    Image image = {};    // null: there is none
    int64_t seen = 0;    // tokens that a prompt has begun with before, on the grid
    // Of those behind `tokens`, the ones that a state had absorbed which has made room since.
    int64_t lost = 0;
    // Where states of this prompt should be kept, ascending, behind `tokens`. All lie before its
    // last token, whose logits are wanted.
    std::vector<int64_t> points = {};
  };
  // What there is for a prompt that begins now. keeps: it is remembered, and may leave states;
  // places: where else its states should be kept.
  Found look(Owner owner, std::span<const int32_t> ids, bool keeps,
             const PrefixPoints& places = {});

  // Whether a state of these ids is wanted, which are whole chunks; if so, there is room for it.
  bool make_room(Owner owner, std::span<const int32_t> ids);
  // Keeps the state of these ids, if make_room() was true just before.
  // written: it is that, and need not be offered. may_be_written: false: it is never offered.
  using Written = std::shared_ptr<const StoredState>;
  void keep(Owner owner, std::span<const int32_t> ids, Image image, const Written& written = {},
            bool may_be_written = true);
  // What was offered of these ids is written.
  void set_written(Owner owner, std::span<const int32_t> ids, const Written& written);

  // The longest beginning of a prompt of which there is a state; it counts as no use.
  struct Longest {
    int64_t tokens = 0;
    Image image = {};  // null: there is none
  };
  Longest longest(Owner owner, std::span<const int32_t> ids);

  // Whether the next states that are kept will need the room of others.
  bool is_short() const;
  // Where states are written while they are here.
  enum class To { kDisk, kStore };
  // What should be written there next, each once: where room is short, of the least value first,
  // which is to make it, but for a store; else of the greatest.
  struct Offer {
    Owner owner = 0;
    std::vector<int32_t> ids = {};
    Image image = {};        // null: nothing
    Written continues = {};  // the longest written state that these ids begin with; null: none
    int64_t gain = 0;        // tokens that it spares beyond the state before it
    int64_t hits = 0;
  };
  // least_worth: nothing that is worth no more than that, in gain times uses.
  Offer offer(To to, double least_worth);
  // The state of these ids is offered once more.
  void offer_again(To to, Owner owner, std::span<const int32_t> ids);

  // An image of so many tokens is on its way here, for which there is to be room; or has come, or
  // will not.
  void expect(int64_t tokens) { expected_bytes_ += bytes_of(tokens); }
  void expect_no_more(int64_t tokens) { expected_bytes_ -= bytes_of(tokens); }
  // At most so many bytes from now on, and at most those of the options: what is too much goes.
  void set_limit(int64_t bytes) noexcept;
  int64_t limit() const { return limit_; }
  // Of the memory, so many bytes are another's.
  void leave_room(int64_t bytes) { others_bytes_ = bytes; }

  struct Counts {
    int64_t states = 0, nodes = 0, bytes = 0;
    int64_t evicted = 0;  // states, since the start
  };
  Counts counts() const;
  // What a node takes, all told.
  static int64_t node_bytes(int chunk);
  // What a state of so many tokens takes.
  int64_t bytes_of(int64_t tokens) const {
    if (options_.page_bytes == 0) return options_.state_bytes;
    return options_.state_bytes + options_.page_bytes * StateLayout::pages(tokens);
  }

 private:
  struct Key {
    uint64_t parent, hash;  // the number of the node before it, or the owner's root; of the ids
    bool operator==(const Key&) const = default;
  };
  struct HashOfKey {
    size_t operator()(const Key& key) const { return static_cast<size_t>(key.hash ^ key.parent); }
  };
  struct Node {
    uint64_t number = 0;
    Key key = {};
    Node* parent = nullptr;
    int64_t tokens = 0;  // of all chunks up to here
    std::vector<int32_t> ids = {};
    int children = 0;
    int states = 0;  // its state, and those of nodes behind it
    Owner owner = 0;
    Image image = {};
    std::weak_ptr<const StoredState> written = {};
    bool offered[2] = {};    // by To
    bool had_image = false;  // it may have made room since
    int64_t hits = 0;
    double clock = 0;                       // when it was used last
    double value = 0;                       // its place in by_value_
    std::list<Node*>::iterator place = {};  // in bare_ where `states` is 0, else in leading_
  };
  using Path = std::vector<Node*>;

  std::span<const int32_t> chunk_of(std::span<const int32_t> ids, size_t index) const;
  size_t last_place(std::span<const int32_t> ids) const;
  uint64_t root_of(Owner owner);
  uint64_t hash_of(std::span<const int32_t> chunk) const;
  size_t most_nodes() const;  // of a path
  Node& add_node(const Key& key, Node* parent, Owner owner, std::span<const int32_t> chunk);
  Path path_of(Owner owner, std::span<const int32_t> ids, bool extends);
  void touch(const Path& path);
  std::vector<int64_t> points_of(int64_t from, int64_t seen, int64_t end,
                                 const PrefixPoints& places) const;
  int64_t gain_of(const Node& node) const;
  double worth_of(const Node& node) const;
  double value_of(const Node& node) const;
  bool is_offered(const Node& node, To to, double least_worth) const;
  Offer offer_of(Node& node, To to);
  void use(Node& node);
  void revalue(Node& node, double value);
  bool shrink_by(int64_t wanted) noexcept;
  bool evict_state() noexcept;
  void count_state(Node& node, int by) noexcept;
  void trim(int64_t most_bare) noexcept;
  void forget(Node& node) noexcept;
  int64_t bytes() const;

  const Options options_;
  const int64_t node_bytes_;
  const uint64_t seed_;  // of hashes: no client can choose ids whose hashes are equal
  int64_t limit_;        // of bytes()
  uint64_t next_number_ = 1;
  std::unordered_map<Owner, uint64_t> roots_;
  std::unordered_map<Key, Node, HashOfKey> nodes_;
  std::list<Node*> bare_;     // those with no state here or below, used longest ago last
  std::list<Node*> leading_;  // the others, so that a state goes without taking memory
  std::set<std::pair<double, Node*>> by_value_;  // those with a state
  int64_t states_bytes_ = 0, expected_bytes_ = 0, others_bytes_ = 0;
  double clock_ = 0;
  int64_t evicted_ = 0;
};

}  // namespace recurve
