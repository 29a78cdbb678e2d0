#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/collectives/collectives.hpp"
#include "tests/world.hpp"

/// @file
/// Helpers for the tests of collectives: a group of all ranks, and values that differ by rank and by index.

namespace rankwise {

/// A group of all ranks of the test with all that it needs.
struct GroupForTest {
  explicit GroupForTest(Algorithm algorithm, int ranks_per_node = 0, bool check_messages = false,
                        std::int64_t leaves = 0)
      : setup{.memory = memory,
              .stream = stream.get(),
              .traffic = &traffic,
              .algorithm = algorithm,
              .ranks_per_node = ranks_per_node,
              .check_messages = check_messages,
              .leaves = leaves},
        group("world", Communicator::world(), setup)
  {
  }

  MemoryLedger ledger;
  TrafficLedger traffic;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  DeviceMemory memory{device.get(), &ledger};
  GroupSetup setup;
  Group group;
};

/// Element i on a rank: small whole numbers, so that sums are without rounding in every type but u8.
inline int value_at(int rank, std::int64_t i)
{
  const auto position = static_cast<std::uint64_t>(i) * 97 + static_cast<std::uint64_t>(rank);
  const std::uint64_t mixed = (position + 1) * 0x9E3779B97F4A7C15u;
  return static_cast<int>(mixed >> 60);
}

/// The sum of element i over N ranks.
inline int sum_at(int ranks, std::int64_t i)
{
  int sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value_at(r, i);
  return sum;
}

/// A vector on one rank, with a guard element before and after it that no call may change.
template <class T>
struct Guarded {
  explicit Guarded(std::int64_t n, int rank) : elements(static_cast<std::size_t>(n + 2), static_cast<T>(guard))
  {
    for (std::int64_t i = 0; i < n; ++i) (*this)[i] = static_cast<T>(static_cast<float>(value_at(rank, i)));
  }

  T& operator[](std::int64_t i) { return elements[static_cast<std::size_t>(i + 1)]; }
  int at(std::int64_t i) { return static_cast<int>(static_cast<float>((*this)[i])); }
  std::int64_t size() const { return static_cast<std::int64_t>(elements.size()) - 2; }
  Tensor tensor() { return Tensor(elements.data() + 1, dtype_of<T>(), {size()}); }
  bool intact() const
  {
    return static_cast<float>(elements.front()) == guard && static_cast<float>(elements.back()) == guard;
  }

  static constexpr float guard = 99;
  std::vector<T> elements;
};

}  // namespace rankwise
