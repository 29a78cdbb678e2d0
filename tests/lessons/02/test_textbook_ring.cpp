// The textbook ring of lesson 02: the bits and the bytes of the ring that lessons use, and its cost.

#include <vector>

#include "lessons/02_collectives/textbook_ring.hpp"
#include "lessons/02_collectives/vectors.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

/// This rank's vector: real numbers that differ by rank and by index, with a guard on either side.
struct Values {
  Values(DType type, std::int64_t n) : bytes(static_cast<std::size_t>((n + 2) * bytes_of(type)), std::byte{guard})
  {
    tensor = Tensor(bytes.data() + bytes_of(type), type, {n});
    fill(tensor, world().rank());
  }
  bool intact() const
  {
    const auto width = static_cast<std::size_t>(bytes_of(tensor.type()));
    bool same = true;
    for (std::size_t i = 0; i < width; ++i)
      same = same && bytes[i] == std::byte{guard} && bytes[bytes.size() - 1 - i] == std::byte{guard};
    return same;
  }

  static constexpr unsigned char guard = 0x5A;
  std::vector<std::byte> bytes;
  Tensor tensor;
};

}  // namespace

TEST_CASE("textbook_ring_all_reduce_sum: has the bits of the ring and sends its bytes, whatever the count")
{
  GroupForTest textbook(Algorithm::ring), ring(Algorithm::ring);
  const std::int64_t N = world().ranks();
  for (const DType type : {DType::f32, DType::bf16, DType::f64, DType::i32})
    for (const std::int64_t n :
         {N, N - 1, N + 1, std::int64_t{1}, std::int64_t{0}, std::int64_t{1001}, N * 140003 + 2}) {
      INFO(name_of(type) << ", n = " << n);
      Values plain(type, n), fast(type, n), by_rank(type, n), by_tree(type, n);
      textbook.traffic.clear();
      ring.traffic.clear();
      textbook_ring_all_reduce_sum(plain.tensor, textbook.group);
      all_reduce_sum(fast.tensor, ring.group);
      CHECK((plain.bytes == fast.bytes));
      CHECK(plain.intact());
      CHECK(textbook.traffic.total() == textbook_ring_traffic(n, type, world().ranks(), world().rank()));
      CHECK(textbook.traffic.total().bytes == ring.traffic.total().bytes);

      if (type != DType::f32 || N < 3 || n < 1000) continue;
      sum_of_ranks(by_rank.tensor, by_tree.tensor, world().ranks());
      CHECK((plain.bytes != by_rank.bytes));  // the comparison says something: another order has other bits
    }
}

TEST_CASE("textbook_ring_all_reduce_sum: keeps the scratch that the formula says")
{
  for (const std::int64_t n : {0, 1, 7, 1001}) {
    GroupForTest with(Algorithm::ring);
    Values values(DType::f32, n);
    textbook_ring_all_reduce_sum(values.tensor, with.group);
    CHECK(with.ledger.current(Tier::device)[Category::communication] ==
          textbook_ring_scratch(n, DType::f32, world().ranks(), world().rank()));
  }
}

TEST_CASE("textbook_ring_traffic, textbook_ring_scratch: figures")
{
  // 3 ranks and 4 elements are shards of 2, 1 and 1: rank 0 sends 2, 1, 0, 2, rank 1 sends 0, 2, 1, 0.
  CHECK(textbook_ring_traffic(4, DType::f32, 3, 0) == Traffic{.messages = 4, .bytes = 4 * (1 + 1 + 2 + 1)});
  CHECK(textbook_ring_traffic(4, DType::f32, 3, 1) == Traffic{.messages = 4, .bytes = 4 * (2 + 1 + 1 + 2)});
  CHECK(textbook_ring_traffic(4, DType::f32, 3, 2) == Traffic{.messages = 4, .bytes = 4 * (1 + 2 + 1 + 1)});
  CHECK(textbook_ring_traffic(4000, DType::bf16, 4, 2) == Traffic{.messages = 6, .bytes = 2 * 6 * 1000});
  CHECK(textbook_ring_traffic(1, DType::f32, 3, 0) == Traffic{.messages = 1, .bytes = 4});
  CHECK(textbook_ring_traffic(0, DType::f32, 3, 0) == Traffic{});
  CHECK(textbook_ring_traffic(9, DType::f32, 1, 0) == Traffic{});
  CHECK(textbook_ring_scratch(4, DType::f32, 3, 0) == 8);
  CHECK(textbook_ring_scratch(4, DType::f32, 3, 1) == 4);
  CHECK(textbook_ring_scratch(9, DType::f32, 1, 0) == 0);
}
