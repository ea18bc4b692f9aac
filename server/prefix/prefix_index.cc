#include "server/prefix/prefix_index.h"

#include <algorithm>
#include <random>

namespace recurve {
namespace {

// Of the memory, what nodes may take that lead to no state: they tell where prompts part.
constexpr int64_t kBareShare = 8;

uint64_t drawn_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

uint64_t mixed(uint64_t x) {  // the finaliser of SplitMix64, a bijection
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

PrefixIndex::PrefixIndex(const Options& options)
    : options_(options),
      node_bytes_(node_bytes(options.chunk)),
      seed_(drawn_seed()),
      limit_(options.bytes) {}

// A node in its map and its list, its ids, and its share of the map's buckets.
int64_t PrefixIndex::node_bytes(int chunk) {
  constexpr int64_t kHeap = 16, kMapNode = 3 * sizeof(void*), kListNode = 3 * sizeof(void*);
  return static_cast<int64_t>(sizeof(Node) + sizeof(Key)) + kMapNode + kListNode + 3 * kHeap +
         chunk * static_cast<int64_t>(sizeof(int32_t));
}

int64_t PrefixIndex::bytes() const {
  return static_cast<int64_t>(nodes_.size()) * node_bytes_ + states_bytes_ + expected_bytes_ +
         others_bytes_;
}

PrefixIndex::Counts PrefixIndex::counts() const {
  return {.states = static_cast<int64_t>(by_value_.size()),
          .nodes = static_cast<int64_t>(nodes_.size()),
          .bytes = bytes(),
          .evicted = evicted_};
}

// The last one where a state of these ids may be: a prompt has something left to absorb.
size_t PrefixIndex::last_place(std::span<const int32_t> ids) const {
  const auto chunk = static_cast<size_t>(options_.chunk);
  return ids.empty() ? 0 : (ids.size() - 1) / chunk * chunk;
}

PrefixIndex::Found PrefixIndex::look(Owner owner, std::span<const int32_t> ids, bool keeps,
                                     const PrefixPoints& places) {
  const size_t end = last_place(ids);
  const Path known = path_of(owner, ids.first(end), false);
  Found found{.seen = known.empty() ? 0 : known.back()->tokens};
  const auto kept = std::find_if(known.rbegin(), known.rend(),
                                 [](const Node* node) { return node->image != nullptr; });
  if (kept != known.rend()) {
    use(**kept);
    found.tokens = (*kept)->tokens;
    found.image = (*kept)->image;
  }
  const auto had =
      std::find_if(known.rbegin(), kept, [](const Node* node) { return node->had_image; });
  if (had != kept) found.lost = (*had)->tokens - found.tokens;
  if (!keeps) return found;
  touch(path_of(owner, ids.first(end), true));
  trim(limit_ / kBareShare);
  found.points = points_of(found.tokens, found.seen, static_cast<int64_t>(end), places);
  return found;
}

// from: where it begins. Where the prompt parts from those seen before, its end, and where its
// messages say; all of them far enough from the one before. Where the client says it is kept
// anyway.
std::vector<int64_t> PrefixIndex::points_of(int64_t from, int64_t seen, int64_t end,
                                            const PrefixPoints& places) const {
  const auto floor = [&](int64_t at) {
    return std::min(at / options_.chunk * options_.chunk, end);
  };
  std::vector<int64_t> wanted = {seen, end}, named;
  for (const int64_t at : places.likely) wanted.push_back(floor(at));
  for (const int64_t at : places.named) named.push_back(floor(at));
  wanted.insert(wanted.end(), named.begin(), named.end());
  if (bytes() < limit_ / 2) {
    const int64_t sparse = std::max<int64_t>(kSparse / options_.chunk, 1) * options_.chunk;
    for (int64_t at = (from / sparse + 1) * sparse; at < end; at += sparse) wanted.push_back(at);
  }
  std::sort(wanted.begin(), wanted.end());
  std::vector<int64_t> points;
  for (const int64_t at : wanted) {
    const int64_t before = points.empty() ? from : points.back();
    const bool is_named = std::ranges::find(named, at) != named.end();
    const int64_t least = is_named ? 1 : std::max<int64_t>(options_.least_gain, 1);
    if (at - before >= least) points.push_back(at);
  }
  return points;
}

bool PrefixIndex::make_room(Owner owner, std::span<const int32_t> ids) {
  const size_t nodes = ids.size() / static_cast<size_t>(options_.chunk);
  if (nodes == 0 || nodes > most_nodes()) return false;
  const Path path = path_of(owner, ids, false);
  if (path.size() == nodes && path.back()->image != nullptr) return false;
  const int64_t wanted =
      bytes_of(static_cast<int64_t>(ids.size())) + static_cast<int64_t>(nodes) * node_bytes_;
  if (wanted > limit_) return false;
  return shrink_by(wanted);
}

// What is of the least value goes, until there is room for so many bytes. False: there is none.
bool PrefixIndex::shrink_by(int64_t wanted) noexcept {
  while (bytes() + wanted > limit_) {
    if (evict_state()) continue;
    if (bare_.empty()) return false;
    trim(static_cast<int64_t>(bare_.size() - 1) * node_bytes_);
  }
  return true;
}

void PrefixIndex::set_limit(int64_t bytes) noexcept {
  limit_ = std::min(bytes, options_.bytes);
  trim(limit_ / kBareShare);
  shrink_by(0);
}

void PrefixIndex::keep(Owner owner, std::span<const int32_t> ids, Image image,
                       const Written& written, bool may_be_written) {
  const Path path = path_of(owner, ids, true);
  if (path.empty() || path.back()->image != nullptr) return;
  if (path.back()->tokens != static_cast<int64_t>(ids.size())) return;
  Node& node = *path.back();
  node.clock = clock_;
  node.hits = 0;
  node.value = value_of(node);
  by_value_.emplace(node.value, &node);
  count_state(node, 1);
  node.image = std::move(image);
  node.had_image = true;
  states_bytes_ += bytes_of(node.tokens);
  node.offered[static_cast<size_t>(To::kDisk)] = written != nullptr || !may_be_written;
  node.offered[static_cast<size_t>(To::kStore)] = !may_be_written;
  if (written != nullptr) node.written = written;
}

void PrefixIndex::set_written(Owner owner, std::span<const int32_t> ids, const Written& written) {
  const Path path = path_of(owner, ids, false);
  if (path.empty() || path.back()->tokens != static_cast<int64_t>(ids.size())) return;
  path.back()->written = written;
}

PrefixIndex::Longest PrefixIndex::longest(Owner owner, std::span<const int32_t> ids) {
  const Path known = path_of(owner, ids.first(last_place(ids)), false);
  const auto kept = std::find_if(known.rbegin(), known.rend(),
                                 [](const Node* node) { return node->image != nullptr; });
  if (kept == known.rend()) return {};
  return {(*kept)->tokens, (*kept)->image};
}

// Room for the next two, as large as those that there are, and for what leads to them.
bool PrefixIndex::is_short() const {
  const auto states = static_cast<int64_t>(by_value_.size());
  const int64_t each = states > 0 ? states_bytes_ / states : options_.state_bytes;
  return bytes() + limit_ / 8 + 2 * each >= limit_;
}

bool PrefixIndex::is_offered(const Node& node, To to, double least_worth) const {
  if (node.offered[static_cast<size_t>(to)] || gain_of(node) < options_.least_offered_gain)
    return false;
  return worth_of(node) > least_worth;
}

PrefixIndex::Offer PrefixIndex::offer_of(Node& node, To to) {
  node.offered[static_cast<size_t>(to)] = true;
  Offer offer{.owner = node.owner, .image = node.image, .gain = gain_of(node), .hits = node.hits};
  offer.ids.resize(static_cast<size_t>(node.tokens));
  for (const Node* at = &node; at != nullptr; at = at->parent) {
    std::ranges::copy_backward(at->ids, offer.ids.begin() + at->tokens);
    if (offer.continues == nullptr && at != &node) offer.continues = at->written.lock();
  }
  return offer;
}

PrefixIndex::Offer PrefixIndex::offer(To to, double least_worth) {
  const auto is_next = [&](const auto& at) { return is_offered(*at.second, to, least_worth); };
  if (to == To::kDisk && is_short()) {
    const auto next = std::find_if(by_value_.begin(), by_value_.end(), is_next);
    return next == by_value_.end() ? Offer{} : offer_of(*next->second, to);
  }
  const auto next = std::find_if(by_value_.rbegin(), by_value_.rend(), is_next);
  return next == by_value_.rend() ? Offer{} : offer_of(*next->second, to);
}

void PrefixIndex::offer_again(To to, Owner owner, std::span<const int32_t> ids) {
  const Path path = path_of(owner, ids, false);
  if (path.empty() || path.back()->tokens != static_cast<int64_t>(ids.size())) return;
  path.back()->offered[static_cast<size_t>(to)] = false;
}

// The node has a state from now on, or none any more, and those before it lead to one more or less.
void PrefixIndex::count_state(Node& node, int by) noexcept {
  for (Node* at = &node; at != nullptr; at = at->parent) {
    if (at->states == 0) leading_.splice(leading_.end(), bare_, at->place);
    at->states += by;
    if (at->states == 0) bare_.splice(bare_.end(), leading_, at->place);
  }
}

std::span<const int32_t> PrefixIndex::chunk_of(std::span<const int32_t> ids, size_t index) const {
  const auto chunk = static_cast<size_t>(options_.chunk);
  return ids.subspan(index * chunk, chunk);
}

size_t PrefixIndex::most_nodes() const {
  return static_cast<size_t>(limit_ / kBareShare / node_bytes_);
}

// Each owner's root has another number, so that no two owners share a node.
uint64_t PrefixIndex::root_of(Owner owner) {
  const auto [place, fresh] = roots_.try_emplace(owner, next_number_);
  if (fresh) ++next_number_;
  return place->second;
}

uint64_t PrefixIndex::hash_of(std::span<const int32_t> chunk) const {
  uint64_t hash = seed_;
  for (const int32_t id : chunk) hash = mixed(hash + static_cast<uint32_t>(id) + 1);
  return hash;
}

// The nodes of the ids, as many as there are, or with those that are made for the others as far as
// there is room for them.
PrefixIndex::Path PrefixIndex::path_of(Owner owner, std::span<const int32_t> ids, bool extends) {
  const uint64_t root = root_of(owner);
  const size_t chunks = ids.size() / static_cast<size_t>(options_.chunk);
  Path path;
  for (size_t c = 0; c < chunks; ++c) {
    const std::span<const int32_t> chunk = chunk_of(ids, c);
    Node* parent = path.empty() ? nullptr : path.back();
    const Key key{parent == nullptr ? root : parent->number, hash_of(chunk)};
    const auto found = nodes_.find(key);
    if (found != nodes_.end()) {
      if (!std::ranges::equal(found->second.ids, chunk)) break;  // another one of the same hash
      path.push_back(&found->second);
    } else if (extends && path.size() < most_nodes()) {
      path.push_back(&add_node(key, parent, owner, chunk));
    } else {
      break;
    }
  }
  return path;
}

PrefixIndex::Node& PrefixIndex::add_node(const Key& key, Node* parent, Owner owner,
                                         std::span<const int32_t> chunk) {
  Node made{.key = key, .parent = parent, .ids = {chunk.begin(), chunk.end()}, .owner = owner};
  made.tokens = (parent == nullptr ? 0 : parent->tokens) + options_.chunk;
  made.place = bare_.insert(bare_.begin(), nullptr);
  Node* node = nullptr;
  try {
    node = &nodes_.emplace(key, std::move(made)).first->second;
  } catch (...) {
    bare_.pop_front();
    throw;
  }
  node->number = next_number_++;
  *node->place = node;
  if (parent != nullptr) ++parent->children;
  return *node;
}

// From the last to the first, so that a node is older than none behind it.
void PrefixIndex::touch(const Path& path) {
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    if ((*node)->states == 0) bare_.splice(bare_.begin(), bare_, (*node)->place);
  }
}

// Tokens that are spared by it and by no state before it.
int64_t PrefixIndex::gain_of(const Node& node) const {
  const Node* before = node.parent;
  while (before != nullptr && before->image == nullptr) before = before->parent;
  return node.tokens - (before == nullptr ? 0 : before->tokens);
}

// That, as often as it was used.
double PrefixIndex::worth_of(const Node& node) const {
  return static_cast<double>(node.hits + 1) * static_cast<double>(gain_of(node));
}

// From the clock on.
double PrefixIndex::value_of(const Node& node) const { return node.clock + worth_of(node); }

void PrefixIndex::use(Node& node) {
  ++node.hits;
  node.clock = clock_;
  revalue(node, value_of(node));
}

void PrefixIndex::revalue(Node& node, double value) {
  auto place = by_value_.extract({node.value, &node});
  node.value = value;
  place.value() = {value, &node};
  by_value_.insert(std::move(place));
}

// The state of the least value goes. What went before it may have made it worth more: it is looked
// at anew first.
bool PrefixIndex::evict_state() noexcept {
  while (!by_value_.empty()) {
    Node& least = *by_value_.begin()->second;
    const double value = value_of(least);
    if (value > least.value) {
      revalue(least, value);
      continue;
    }
    by_value_.erase(by_value_.begin());
    clock_ = least.value;
    least.image.reset();
    states_bytes_ -= bytes_of(least.tokens);
    ++evicted_;
    count_state(least, -1);
    return true;
  }
  return false;
}

// Until bare nodes take so many bytes at most. Only a last one may go: others behind it stand
// before it by right, and it is taken up again after them.
void PrefixIndex::trim(int64_t most_bare) noexcept {
  while (static_cast<int64_t>(bare_.size()) * node_bytes_ > most_bare) {
    Node& oldest = *bare_.back();
    if (oldest.children > 0) {
      bare_.splice(bare_.begin(), bare_, oldest.place);
    } else {
      forget(oldest);
    }
  }
}

void PrefixIndex::forget(Node& node) noexcept {
  if (node.parent != nullptr) --node.parent->children;
  bare_.erase(node.place);
  const Key key = node.key;
  nodes_.erase(key);
}

}  // namespace recurve
