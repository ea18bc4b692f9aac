#pragma once
#include <algorithm>
#include <cstddef>

namespace xgrammar {

// WorkWatch::check() for the library, which deploy/xgrammar.sh patches to call these functions.
void LookAtWork(size_t more = 0);

// Called before `count` elements are added.
template <typename Vector>
void LookAtGrowth(const Vector& vector, size_t count = 1) {
  const size_t size = vector.size() + count;
  const bool grows = size > vector.capacity();
  LookAtWork(grows ? std::max(size, 2 * vector.capacity()) * sizeof(typename Vector::value_type)
                   : 0);
}

}  // namespace xgrammar
