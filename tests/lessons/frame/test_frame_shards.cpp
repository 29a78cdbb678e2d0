// Digest, deviation and blocks of a sharded model: they equal those of one rank with the whole model.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/messages/job_report.hpp"
#include "lessons/frame/shards.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/world.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// Twelve heads, which 1, 2, 3 and 4 tensor-parallel ranks divide; 11 entries of the vocabulary, of which some ranks have
// nothing but padding; and so many that the token embedding is more than a block.
const ModelConfig small = tiny_config(2, 12, 48, 6);
const ModelConfig large{"large", 1, 12, 48, 6, 12'001, {}};

/// Bit patterns that arithmetic would change: -0, denormal numbers, infinities, NaNs of any payload.
constexpr std::uint32_t fragile_bits[] = {0x80000000, 0x00000001, 0x807fffff, 0x7f800000,
                                          0xff800000, 0x7fc00000, 0x7f800001, 0xffabcdef};

/// All parameters, in a table of the whole model.
struct Whole {
  explicit Whole(const ModelConfig& sizes) : config(sizes)
  {
    initialize_parameters(lab.stream(), flat, table, config, 3);
  }
  /// Writes fragile bits here and there in each tensor.
  void make_fragile()
  {
    std::size_t next = 0;
    for (const Parameter& p : table.entries())
      for (std::int64_t i = 0; i < p.shape.elements(); i += 1 + p.shape.elements() / 20)
        flat.data<float>()[p.elements.first + i] = std::bit_cast<float>(fragile_bits[next++ % 8]);
  }
  /// The elements of all tensors, one tensor after the other, without padding.
  std::vector<float> values() const
  {
    std::vector<float> all;
    for (const Parameter& p : table.entries()) {
      const auto tensor = flat.slice({p.elements.first, p.shape.elements()}).span<float>();
      all.insert(all.end(), tensor.begin(), tensor.end());
    }
    return all;
  }
  std::string digest() const { return parameter_digest(lab.stream(), table, flat); }

  mutable Laboratory lab;
  ModelConfig config;
  ParameterTable table{config};
  Tensor flat = lab.zeros(DType::f32, {table.elements()});
};

/// The bits of floats, so that NaNs compare too.
std::vector<std::uint32_t> bits_of(std::span<const float> values)
{
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

void flip_last_bit(float& x)
{
  x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ 1);
}

/// What one rank holds: a table, the elements of its flat vector that the rank owns, and a vector in which all that it does
/// not own, padding included, is 99.
struct Held {
  Held(Whole& whole, const ParameterTable& parameters, std::vector<Range> ranges)
      : table(parameters), own(std::move(ranges)), flat(whole.lab.zeros(DType::f32, {table.elements()}))
  {
    const Tensor values = part_of(whole.lab, table, whole.table, whole.flat);
    const Tensor ones = whole.lab.filled(DType::f32, {whole.table.elements()}, 0, 0, 1);
    const Tensor is_parameter = part_of(whole.lab, table, whole.table, ones);  // 0 in padding
    std::fill_n(flat.data<float>(), flat.elements(), 99.0F);
    for (const Range& range : own) {
      whole.lab.stream().copy(flat.slice(range), values.slice(range));
      for (std::int64_t i = range.first; i < range.end(); ++i)
        if (is_parameter.data<float>()[i] == 1)
          last_parameter = i;
        else
          flat.data<float>()[i] = 99;
    }
  }
  HeldShards shards(Stream& stream) const
  {
    std::vector<Shard> list;
    for (const Range& range : own) list.push_back({table, range, flat.slice(range), {}, {}});
    return {list, stream};
  }

  ParameterTable table;
  std::vector<Range> own;
  Tensor flat;
  std::int64_t last_parameter = -1;  // of this rank's that is no padding
};

/// Every n-th piece of a flat vector; the cuts are anywhere in tensors and rows, in another place in each round.
std::vector<Range> pieces_of(std::int64_t elements, int index, int n, std::int64_t length = 1009)
{
  std::vector<Range> own;
  for (std::int64_t piece = 0; piece * length < elements; ++piece)
    if (piece % n == index) own.push_back({piece * length, std::min(length, elements - piece * length)});
  return own;
}

/// All of the tensors that are divided, and of the rest all on the first rank alone.
std::vector<Range> owned_by_part(const ParameterTable& table, int part)
{
  std::vector<Range> own;
  for (const Parameter& p : table.entries())
    if (p.split != Split::none || part == 0) own.push_back(p.elements);
  return own;
}

/// The intersections of some ranges with others.
std::vector<Range> within(const std::vector<Range>& some, const std::vector<Range>& others)
{
  std::vector<Range> shared;
  for (const Range& a : some)
    for (const Range& b : others)
      if (const Range both = intersect(a, b); !both.empty()) shared.push_back(both);
  return shared;
}

/// This rank's shards in each way to divide a model among the ranks of the test.
std::vector<std::pair<std::string, Held>> ways(Whole& whole)
{
  const int r = world().rank(), N = world().ranks();
  std::vector<std::pair<std::string, Held>> all;
  const std::int64_t P = whole.table.elements();
  all.emplace_back("pieces", Held(whole, whole.table, pieces_of(P, r, N)));
  all.emplace_back("all on the last rank", Held(whole, whole.table, {{0, r == N - 1 ? P : 0}}));
  const ParameterTable replicated(whole.config, {}, {0, -1}, 128);
  all.emplace_back("small replicated tensors", Held(whole, replicated, pieces_of(P, r, N, 31)));
  const ParameterTable part(whole.config, {r, N});
  all.emplace_back("tensor-parallel", Held(whole, part, owned_by_part(part, r)));
  const Range units = Partition(whole.table.units().count, N).shard(r);
  const ParameterTable stage(whole.config, {}, units);
  all.emplace_back("pipeline stages", Held(whole, stage, {{0, stage.elements()}}));
  if (N % 2 == 0) {  // two tensor-parallel ranks, each of whose shards are dealt out among N / 2 ranks
    const ParameterTable half(whole.config, {r % 2, 2});
    all.emplace_back(
        "pieces of tensor-parallel parts",
        Held(whole, half, within(owned_by_part(half, r % 2), pieces_of(half.elements(), r / 2, N / 2, 307))));
  }
  return all;
}

}  // namespace

TEST_CASE("for_each_block: all elements of all tensors in the order of the table, on every rank, to the bit")
{
  for (const ModelConfig& config : {small, large}) {
    Whole whole(config);
    whole.make_fragile();
    const auto expected = bits_of(whole.values());
    for (const auto& [way, held] : ways(whole)) {
      CAPTURE(config.name, way);
      std::vector<float> values;
      std::vector<int> tensors;
      std::int64_t next = 0, wrong = 0;
      const auto look = [&](const Parameter& tensor, Range elements, std::span<const float> block) {
        if (tensors.empty() || tensors.back() != tensor.number) next = 0;
        wrong += elements.first != next || elements.count != std::ssize(block) || elements.count > 1 << 18;
        wrong += elements.count % tensor.shape[tensor.shape.rank() - 1] != 0;
        next = elements.end();
        tensors.push_back(tensor.number);
        values.insert(values.end(), block.begin(), block.end());
      };
      for_each_block(config, held.shards(whole.lab.stream()), Communicator::world(), look);
      CHECK(wrong == 0);
      CHECK((bits_of(values) == expected));
      CHECK(std::is_sorted(tensors.begin(), tensors.end()));
      CHECK(tensors.size() == whole.table.entries().size() + (config.name == "large" ? 2 : 0));
    }
  }
}

TEST_CASE("for_each_block: copies elements within one range at a time, and loads no shard")
{
  Whole whole(small);
  const Held held(whole, whole.table, pieces_of(whole.table.elements(), world().rank(), world().ranks()));
  std::int64_t copied = 0, across = 0;
  const auto copy = [&](Range elements, const Tensor& to) {
    across += std::none_of(held.own.begin(), held.own.end(),
                           [&](const Range& own) { return intersect(own, elements) == elements; });
    copied += elements.count;
    whole.lab.stream().copy(to, held.flat.slice(elements));
  };
  const auto no_walk = [](Access, const UseShard&) { FAIL("asked for a shard"); };
  const HeldShards shards(held.table, held.own, no_walk, copy);
  CHECK(parameter_digest(small, shards, Communicator::world()) == whole.digest());
  CHECK(across == 0);
  std::int64_t owned = 0,
               padding = whole.table.entries()[0].elements.count - whole.table.entries()[0].shape.elements();
  for (const Range& range : held.own) owned += range.count;
  CHECK(copied <= owned);
  CHECK(copied >= owned - padding);
}

TEST_CASE("parameter_digest: that of whole parameters; it sees what each rank owns, and nothing else")
{
  for (const ModelConfig& config : {small, large}) {
    Whole whole(config);
    whole.make_fragile();
    for (const auto& [way, held] : ways(whole)) {
      CAPTURE(config.name, way);
      const HeldShards shards = held.shards(whole.lab.stream());
      const auto digest = [&] { return parameter_digest(config, shards, Communicator::world()); };
      CHECK(digest() == whole.digest());
      for (int rank = 0; rank < world().ranks(); ++rank) {  // the last bit of one parameter of one rank
        const bool mine = rank == world().rank() && held.last_parameter >= 0;
        if (mine) flip_last_bit(held.flat.data<float>()[held.last_parameter]);
        CHECK((digest() == whole.digest()) == on_all_ranks(!mine));
        if (mine) flip_last_bit(held.flat.data<float>()[held.last_parameter]);
      }
    }
  }
}

TEST_CASE("parameter_digest: of each replica its own")
{
  Whole whole(small);
  const int replicas = world().ranks() % 2 == 0 ? 2 : 1, replica = world().rank() % replicas;
  const Communicator ranks = Communicator::world().split(replica, world().rank());
  const Held held(whole, whole.table, pieces_of(whole.table.elements(), ranks.rank(), ranks.ranks()));
  const std::string expected = whole.digest();
  CHECK(parameter_digest(small, held.shards(whole.lab.stream()), ranks) == expected);
  if (replica == 1) held.flat.data<float>()[held.last_parameter] += 1;
  CHECK((parameter_digest(small, held.shards(whole.lab.stream()), ranks) == expected) == (replica == 0));
}

TEST_CASE("gather_parameters, deviation_of: all parameters on rank 0, and how far they are from others")
{
  for (const ModelConfig& config : {small, large}) {
    Whole whole(config);
    const Tensor other = whole.lab.filled(DType::f32, {whole.table.elements()}, 9);
    const Parameter& wte = whole.table.entries().front();  // in the reference padding is zero, as everywhere
    whole.lab.stream().zero(other.slice({wte.shape.elements(), wte.elements.count - wte.shape.elements()}));
    const std::vector<float> reference = to_host<float>(whole.lab.stream(), other);
    const ParameterDeviation expected =
        parameter_deviation(to_host<float>(whole.lab.stream(), whole.flat), reference);
    for (const auto& [way, held] : ways(whole)) {
      CAPTURE(config.name, way);
      const std::vector<float> all =
          gather_parameters(config, held.shards(whole.lab.stream()), Communicator::world());
      if (world().rank() != 0) {
        CHECK(all.empty());
        continue;
      }
      CHECK((all == whole.values()));
      const ParameterDeviation found = deviation_of(config, all, reference);
      CHECK(found.squared_difference.value() == expected.squared_difference.value());
      CHECK(found.squared_norm.value() == expected.squared_norm.value());
    }
  }
}

TEST_CASE("deviation_of: zero of equal parameters; each element of each tensor counts, wherever padding lies")
{
  const Whole whole(small);
  const std::vector<float> all = whole.values();
  std::vector<float> reference = to_host<float>(whole.lab.stream(), whole.flat);
  CHECK(deviation_of(small, all, reference).squared_difference.value() == 0);
  for (const Parameter& p : whole.table.entries())
    for (const std::int64_t place : {std::int64_t{0}, p.shape.elements() - 1}) {
      float& value = reference[static_cast<std::size_t>(p.elements.first + place)];
      const float kept = value;
      value += 2;
      CHECK(deviation_of(small, all, reference).squared_difference.value() == Approx(4));
      value = kept;
    }
}

TEST_CASE("HeldShards: a list of shards is walked in its order")
{
  Whole whole(small);
  const Held held(whole, whole.table, pieces_of(whole.table.elements(), world().rank(), world().ranks()));
  const HeldShards shards = held.shards(whole.lab.stream());
  CHECK((shards.ranges == held.own));
  CHECK(&shards.table == &held.table);
  std::vector<Range> walked;
  shards.for_each(Access::read, [&](const Shard& shard, Stream& stream) {
    CHECK(&stream == &whole.lab.stream());
    CHECK(shard.parameters.raw() == held.flat.slice(shard.owned).raw());
    walked.push_back(shard.owned);
  });
  CHECK((walked == held.own));
}
