#pragma once
#include <algorithm>
#include <cstddef>

namespace xgrammar {

// As WorkWatch::look(): deploy/xgrammar.sh has the library call these on its way.
void LookAtWork(size_t more = 0);

// Before so many elements are added.
template <typename Vector>
void LookAtGrowth(const Vector& vector, size_t count = 1) {
  const size_t size = vector.size() + count;
  const bool grows = size > vector.capacity();
  LookAtWork(grows ? std::max(size, 2 * vector.capacity()) * sizeof(typename Vector::value_type)
                   : 0);
}

}  // namespace xgrammar
