#include "server/constraint/xgrammar/xgrammar_masks.h"

#include <utility>

#include "compiled_grammar_impl.h"

namespace recurve {
namespace {

using xgrammar::AdaptiveTokenMask;
using xgrammar::DynamicBitset;
using Kind = AdaptiveTokenMask::StoreType;

constexpr size_t kMostPacked = 63;  // most tokens of a list in packed_
constexpr int kBits = 8;            // bits of the kind, and of each count
constexpr uint32_t kWordBits = 32;

template <typename Mask>
auto& listed(Mask& mask) {
  return mask.store_type == Kind::kAccepted ? mask.accepted_indices : mask.rejected_indices;
}

std::vector<uint32_t> words_of(const DynamicBitset& bits) {
  std::vector<uint32_t> words(static_cast<size_t>(DynamicBitset::GetBufferSize(bits.Size())));
  DynamicBitset(bits.Size(), words.data()) |= bits;
  return words;
}

// A bit set of tokens in ascending order.
std::vector<uint32_t> bits_of(const std::vector<int32_t>& tokens) {
  std::vector<uint32_t> words(static_cast<size_t>(tokens.back()) / kWordBits + 1);
  for (const int32_t token : tokens) {
    words[static_cast<uint32_t>(token) / kWordBits] |= 1U
                                                       << static_cast<uint32_t>(token) % kWordBits;
  }
  return words;
}

void append_tokens(const std::vector<uint32_t>& words, bool are_bits,
                   std::vector<int32_t>* tokens) {
  if (!are_bits) {
    tokens->assign(words.begin(), words.end());
    return;
  }
  for (size_t w = 0; w < words.size(); ++w) {
    for (uint32_t rest = words[w]; rest != 0; rest &= rest - 1) {
      tokens->push_back(static_cast<int32_t>(w * kWordBits) + __builtin_ctz(rest));
    }
  }
}

}  // namespace

void MaskTable::put(int32_t state, const AdaptiveTokenMask& mask) {
  const bool has_bits = mask.store_type == Kind::kAcceptedBitset;
  if (!has_bits && listed(mask).size() <= kMostPacked &&
      mask.uncertain_indices.size() <= kMostPacked) {
    return pack(state, mask);
  }
  const auto tokens = [](const std::vector<int32_t>& list) {
    const bool are_bits =
        !list.empty() && static_cast<size_t>(list.back()) / kWordBits + 1 < list.size();
    auto words = are_bits ? bits_of(list) : std::vector<uint32_t>(list.begin(), list.end());
    return Tokens{std::make_shared<const std::vector<uint32_t>>(std::move(words)), are_bits};
  };
  add(state,
      {static_cast<int32_t>(mask.store_type), mask.accepted_bitset.Size(),
       has_bits
           ? Tokens{std::make_shared<const std::vector<uint32_t>>(words_of(mask.accepted_bitset)),
                    true}
           : tokens(listed(mask)),
       tokens(mask.uncertain_indices)});
}

void MaskTable::put(int32_t state, const MaskTable& other, int32_t other_state) {
  const int32_t position = other.position_of(other_state);
  if (position > 0) pack(state, *other.find(other_state));
  if (position < 0) add(state, *other.whole_.at(static_cast<size_t>(-position - 1)));
}

void MaskTable::pack(int32_t state, const AdaptiveTokenMask& mask) {
  const std::vector<int32_t>& decided = listed(mask);
  const std::vector<int32_t>& uncertain = mask.uncertain_indices;
  std::vector<int32_t> packed = {static_cast<int32_t>(mask.store_type) |
                                 static_cast<int32_t>(decided.size()) << kBits |
                                 static_cast<int32_t>(uncertain.size()) << 2 * kBits};
  packed.insert(packed.end(), decided.begin(), decided.end());
  packed.insert(packed.end(), uncertain.begin(), uncertain.end());
  set_position(state, static_cast<int32_t>(packed_.add(packed)) + 1);
}

void MaskTable::add(int32_t state, Whole whole) {
  share(&whole.decided.words);
  share(&whole.uncertain.words);
  set_position(state, -static_cast<int32_t>(whole_.add({std::move(whole)})) - 1);
}

void MaskTable::share(Words* words) {
  constexpr size_t kOverhead = 112;  // memory of the vector and its set entry, about
  const auto [found, is_new] = words_.insert(*words);
  if (is_new) words_bytes_ += (*words)->size() * sizeof(uint32_t) + kOverhead;
  *words = *found;
}

int32_t MaskTable::position_of(int32_t state) const {
  const auto index = static_cast<size_t>(state);
  return index < positions_.size() ? positions_[index] : 0;
}

void MaskTable::set_position(int32_t state, int32_t position) {
  const auto index = static_cast<size_t>(state);
  if (index >= positions_.size()) positions_.resize(index + 1);
  positions_[index] = position;
}

MaskTable::Mask MaskTable::find(int32_t state) const {
  const int32_t position = position_of(state);
  if (position == 0) return nullptr;
  auto mask = std::make_shared<AdaptiveTokenMask>();
  if (position < 0) {
    const Whole& whole = *whole_.at(static_cast<size_t>(-position - 1));
    mask->store_type = static_cast<Kind>(whole.kind);
    const std::vector<uint32_t>& decided = *whole.decided.words;
    if (mask->store_type == Kind::kAcceptedBitset) {  // it refers to memory of the table
      mask->accepted_bitset =
          DynamicBitset(whole.vocabulary, const_cast<uint32_t*>(decided.data()));
    } else {
      append_tokens(decided, whole.decided.are_bits, &listed(*mask));
    }
    append_tokens(*whole.uncertain.words, whole.uncertain.are_bits, &mask->uncertain_indices);
    return mask;
  }
  const int32_t* from = packed_.at(static_cast<size_t>(position - 1));
  const int32_t head = *from++;
  constexpr int32_t kLow = (1 << kBits) - 1;
  mask->store_type = static_cast<Kind>(head & kLow);
  const int32_t* middle = from + (head >> kBits & kLow);
  listed(*mask).assign(from, middle);
  mask->uncertain_indices.assign(middle, middle + (head >> 2 * kBits & kLow));
  return mask;
}

size_t MaskTable::bytes() const {
  constexpr size_t kOverhead = 32;
  return sizeof(*this) + kOverhead + positions_.capacity() * sizeof(int32_t) + packed_.bytes() +
         whole_.bytes() + words_bytes_;
}

// MemorySize() of a grammar is about two thirds of its memory (up to four fifths).
size_t bytes_of(const xgrammar::CompiledGrammar& compiled) {
  return MemorySize(compiled.GetGrammar()) * 3 / 2 +
         compiled.ImplPtr()->adaptive_token_mask_cache.bytes();
}

}  // namespace recurve
