// Who asks where there are no keys.
#include "server/serving/access.h"

#include <gtest/gtest.h>

#include <vector>

namespace recurve::access_test {

TEST(Access, WithoutKeysAConnectionStandsForATenantWithinItsAddress) {
  const Access access(nullptr);
  EXPECT_EQ(access.identify({}).share(), kAnyone.tenant) << "it comes by no connection";
  const Identity near = access.identify({.address = "127.0.0.1", .connection = 1});
  const Identity also_near = access.identify({.address = "127.0.0.1", .connection = 2});
  const Identity far = access.identify({.network = "192.0.2.1", .connection = 1});
  const Identity also_far = access.identify({.network = "192.0.2.1", .connection = 3});
  const Identity farther = access.identify({.network = "192.0.2.2", .connection = 4});
  const std::vector<Identity> all = {near, also_near, far, also_far, farther};
  for (size_t a = 0; a < all.size(); ++a) {
    EXPECT_EQ(all[a].tenant, kAnyone.tenant);
    EXPECT_NE(all[a].share(), all[a].group());
    for (size_t b = 0; b < a; ++b) EXPECT_NE(all[a].share(), all[b].share()) << a << b;
  }
  EXPECT_EQ(near.group(), also_near.group());
  EXPECT_EQ(far.group(), also_far.group());
  EXPECT_NE(near.group(), far.group());
  EXPECT_NE(farther.group(), far.group());
}

// They come again, rather than run into the numbers of another address.
TEST(Access, NumbersOfConnectionsStayWithinTheirAddress) {
  const Access access(nullptr);
  const Identity one = access.identify({.network = "192.0.2.1", .connection = 1});
  for (const uint32_t number : {uint32_t{kConnections}, uint32_t{kConnections} + 1, ~uint32_t{0}}) {
    const Identity far = access.identify({.network = "192.0.2.1", .connection = number});
    EXPECT_EQ(far.group(), one.group());
    EXPECT_NE(far.share(), far.group());
  }
}

}  // namespace recurve::access_test
