// Who asks where there are no keys.
#include "server/request/access.h"

#include <gtest/gtest.h>

#include "server/identity/tenants.h"

namespace recurve::access_test {

TEST(Access, WithoutKeysAnAddressOfTheNetworkStandsForATenant) {
  const Access access(nullptr);
  const Identity near = access.identify({.address = "127.0.0.1"});
  EXPECT_EQ(near.network, 0u);
  EXPECT_EQ(near.limits.slot_share, 1) << "this machine's own may have all slots";
  const Identity far = access.identify({.address = "192.0.2.1", .network = "192.0.2.1"});
  EXPECT_EQ(far.tenant, near.tenant);
  EXPECT_NE(far.share(), near.share());
  EXPECT_EQ(far.limits.slot_share, kShareOfOne);
  const Identity farther = access.identify({.address = "192.0.2.2", .network = "192.0.2.2"});
  EXPECT_NE(farther.share(), far.share());
}

}  // namespace recurve::access_test
