// What control groups, of either version, and resource limits leave of a machine.
#include "kernels/host.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace recurve::host_test {

constexpr size_t kMiB = size_t{1} << 20;

class HostTest : public ::testing::Test {
 protected:
  HostTest() {
    write("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1024 kB\nMemAvailable: 8388608 kB\n");
  }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  size_t free() { return free_host_memory(root_.path()); }
  int threads() { return host_threads(root_.path()); }

  TempDir root_;
};

TEST_F(HostTest, WithoutGroupsItIsWhatTheSystemHas) {
  EXPECT_EQ(free(), 8192 * kMiB);
  EXPECT_GE(threads(), 1);
}

TEST_F(HostTest, VersionTwoCountsTheGroupAndAllThatItLiesIn) {
  write("proc/self/cgroup", "0::/pods/one\n");
  write("sys/fs/cgroup/pods/one/memory.max", "1073741824\n");
  write("sys/fs/cgroup/pods/one/memory.current", "314572800\n");
  write("sys/fs/cgroup/pods/one/memory.stat", "anon 1\nfile 2\ninactive_file 104857600\n");
  write("sys/fs/cgroup/pods/memory.max", "max\n");
  EXPECT_EQ(free(), (1024 - 300 + 100) * kMiB);
  write("sys/fs/cgroup/pods/memory.max", "1073741824\n");
  write("sys/fs/cgroup/pods/memory.current", "943718400\n");
  EXPECT_EQ(free(), 124 * kMiB);
  write("sys/fs/cgroup/pods/one/memory.high", "314572800\n");
  EXPECT_EQ(free(), 100 * kMiB) << "beyond it the group is made to wait";
}

TEST_F(HostTest, VersionTwoSaysHowManyCores) {
  write("proc/self/cgroup", "0::/pods/one\n");
  const int all = threads();
  write("sys/fs/cgroup/pods/one/cpu.max", "max 100000\n");
  EXPECT_EQ(threads(), all);
  write("sys/fs/cgroup/pods/one/cpu.max", "190000 100000\n");
  EXPECT_EQ(threads(), 1);
  write("sys/fs/cgroup/pods/one/cpu.max", "20000 100000\n");
  EXPECT_EQ(threads(), 1) << "one there must be";
  write("sys/fs/cgroup/pods/one/cpu.max", "100000000 100000\n");
  EXPECT_EQ(threads(), all) << "no more than there are";
}

// Two hardware threads of a core share what multiplies: one of them is as fast as both.
TEST_F(HostTest, HardwareThreadsOfACoreCountOnce) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> mine;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) mine.push_back(cpu);
  }
  const auto say = [&](int cpu, const std::string& siblings) {
    write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
          siblings + "\n");
  };
  for (const int cpu : mine) say(cpu, std::to_string(cpu) + "," + std::to_string(cpu + 5000));
  EXPECT_EQ(threads(), static_cast<int>(mine.size())) << "others use the other threads";
  if (mine.size() < 2) return;
  for (const int cpu : {mine[0], mine[1]}) {
    say(cpu, std::to_string(mine[0]) + "-" + std::to_string(mine[1]));
  }
  EXPECT_EQ(threads(), static_cast<int>(mine.size()) - 1);
}

TEST_F(HostTest, VersionOneHasAFolderEachController) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(free(), 8192 * kMiB);
  write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "314572800\n");
  write("sys/fs/cgroup/memory/a/b/memory.stat", "cache 1\ntotal_inactive_file 104857600\n");
  EXPECT_EQ(free(), (1024 - 300 + 100) * kMiB);
  const int all = threads();
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(threads(), all);
  write("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(threads(), 1);
}

// The path is the host's, and the folder that is mounted is the group itself.
TEST_F(HostTest, AContainerSeesItsOwnGroupAtTheTop) {
  write("proc/self/cgroup", "4:memory:/docker/0123\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(free(), 1024 * kMiB);
}

TEST_F(HostTest, ResourceLimitsCountWhatTheProcessHasAlready) {
  write("proc/self/status", "Name: x\nVmSize:\t 1048576 kB\nVmData:\t 524288 kB\n");
  EXPECT_EQ(free(), 8192 * kMiB);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  // Far above what this process has, of which a sanitizer's shadow is a part.
  rlimit limit = before;
  limit.rlim_cur = rlim_t{1} << 50;
  write("proc/self/status", fmt::format("Name: x\nVmSize:\t 1048576 kB\nVmData:\t {} kB\n",
                                        (limit.rlim_cur - 1536 * kMiB) >> 10));
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
  EXPECT_EQ(free(), 1536 * kMiB);
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
}

TEST(Host, ThisOneHasMemoryAndThreads) {
  EXPECT_GT(free_host_memory(), kMiB);
  EXPECT_GE(host_threads(), 1);
}

}  // namespace recurve::host_test
