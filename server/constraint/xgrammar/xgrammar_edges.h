#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace recurve {

// The edges of one state of an automaton. deploy/xgrammar.sh replaces the library's vectors by it.
// One edge, as in a literal, is stored in the list itself, which takes 16 bytes instead of 56. More
// edges are in an array whose size is a power of two.
template <typename Edge>
class EdgeList {
  static_assert(std::is_trivially_copyable_v<Edge> && sizeof(Edge) >= sizeof(Edge*));

 public:
  EdgeList() = default;
  EdgeList(const EdgeList& other) : EdgeList(other.begin(), other.size()) {}
  EdgeList(EdgeList&& other) noexcept { swap(other); }
  EdgeList& operator=(EdgeList other) noexcept {
    swap(other);
    return *this;
  }
  ~EdgeList() {
    if (size_ > 1) delete[] array();
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Edge* begin() { return size_ > 1 ? array() : reinterpret_cast<Edge*>(bytes_); }
  Edge* end() { return begin() + size_; }
  const Edge* begin() const { return const_cast<EdgeList*>(this)->begin(); }
  const Edge* end() const { return begin() + size_; }
  const Edge* data() const { return begin(); }
  Edge& operator[](size_t index) { return begin()[index]; }
  const Edge& operator[](size_t index) const { return begin()[index]; }

  void push_back(const Edge& edge) {
    const Edge added = edge;  // a copy, as it may be an element of this list
    const bool full = (size_ & (size_ - 1)) == 0;
    if (full && size_ > 0) move_to(new Edge[size_t{2} * size_]);
    (size_ == 0 ? reinterpret_cast<Edge*>(bytes_) : array())[size_] = added;
    ++size_;
  }
  template <typename... Parts>
  void emplace_back(Parts&&... parts) {
    push_back(Edge(std::forward<Parts>(parts)...));
  }
  // Only for insertion at the end.
  void insert(Edge*, const Edge* first, const Edge* last) {
    for (; first != last; ++first) push_back(*first);
  }
  // Only for erasure up to the end.
  void erase(Edge* first, Edge* last) {
    if (first != last) *this = EdgeList(begin(), static_cast<size_t>(first - begin()));
  }

 private:
  EdgeList(const Edge* edges, size_t count) {
    size_t fit = 1;
    while (fit < count) fit *= 2;
    if (fit > 1) set_array(new Edge[fit]);
    size_ = static_cast<uint32_t>(count);
    std::copy(edges, edges + count, begin());
  }
  void swap(EdgeList& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(size_, other.size_);
  }
  Edge* array() const {
    Edge* array;
    std::memcpy(&array, bytes_, sizeof(array));
    return array;
  }
  void set_array(Edge* array) { std::memcpy(bytes_, &array, sizeof(array)); }
  void move_to(Edge* larger) {
    std::copy(begin(), end(), larger);
    if (size_ > 1) delete[] array();
    set_array(larger);
  }

  alignas(Edge) std::byte bytes_[sizeof(Edge)] = {};
  uint32_t size_ = 0;
};

}  // namespace recurve
