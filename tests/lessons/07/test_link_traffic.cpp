// Bytes over the links of lesson 07, beside sums made by hand.

#include <cstdint>
#include <string>
#include <vector>

#include "lessons/parallel/offload/offload.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/world.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// Units: embedding 704 elements, of which 512 are tied to the head, then (4,288 of attention, 8,416 of an MLP) twice,
// head 64. Each is a block, of which the largest takes 9 pages of disk.
const ModelConfig config = tiny_config(2, 4, 32, 6);
constexpr std::int64_t P = 704 + 2 * (4288 + 8416) + 64, units = 6, page = 4096, block = 9 * page;
// A pass without prefetching gathers every unit twice, but for the head.
constexpr std::int64_t gathered = 2 * P - 64, gathered_units = 2 * units - 1;

/// Description of a run.
struct Run {
  Offload what = Offload::all;
  std::string tier = "host";
  std::int64_t M = 1;  // passes of a step
  DType parameters = DType::f32, gradients = DType::f32;
  bool exact = false;
};

OffloadPlan plan_of(const Run& run)
{
  const ParameterTable table(config);
  const std::vector<Use> uses{{0}, {1}, {2}, {3}, {4}, {5, 0}, {4}, {3}, {2}, {1}};
  const GatherOptions gathering{.unit = UnitKind::branch, .prefetch = 0};
  const StepPlan step{table,
                      make_fsdp_units(table, gathering.unit),
                      run.gradients,
                      run.parameters,
                      Arithmetic(run.exact ? Sums::exact : Sums::fast),
                      Algorithm::ring,
                      run.M,
                      1};
  return {{run.what, run.tier}, step, plan_gathers(step.buckets, uses, gathering), world()};
}

/// Host to device, device to host, disk to host, host to disk.
LinkBytes bytes_of_step(const Run& run)
{
  return link_traffic(plan_of(run));
}

}  // namespace

TEST_CASE("link_traffic: optimizer on the host: gradients go up, parameters come down")
{
  CHECK(bytes_of_step({.what = Offload::optimizer}) == LinkBytes{4 * P, 4 * P, 0, 0});
  CHECK(bytes_of_step({.what = Offload::optimizer, .M = 4}) == LinkBytes{4 * P, 4 * P, 0, 0});
  CHECK(bytes_of_step({.what = Offload::optimizer, .parameters = DType::bf16, .gradients = DType::bf16}) ==
        LinkBytes{2 * P, 2 * P, 0, 0});
}

TEST_CASE("link_traffic: gradients on the host: up in each pass, down for the update")
{
  CHECK(bytes_of_step({.what = Offload::gradients}) == LinkBytes{4 * P, 4 * P, 0, 0});
  CHECK(bytes_of_step({.what = Offload::gradients, .M = 4}) == LinkBytes{4 * P, 4 * 4 * P, 0, 0});
  CHECK(bytes_of_step({.what = Offload::gradients, .M = 3, .gradients = DType::bf16}) ==
        LinkBytes{2 * P, 3 * 2 * P, 0, 0});
}

TEST_CASE("link_traffic: parameters on the host: down for each gather, to the update and back")
{
  for (const std::int64_t M : {1, 3})
    CHECK(bytes_of_step({.what = Offload::parameters, .M = M}) == LinkBytes{M * 4 * gathered + 4 * P, 4 * P, 0, 0});
  // With master weights AdamW does not read them.
  CHECK(bytes_of_step({.what = Offload::parameters, .parameters = DType::bf16}) ==
        LinkBytes{2 * gathered, 2 * P, 0, 0});
}

TEST_CASE("link_traffic: everything on the host: parameters down for each gather, gradients up in each pass")
{
  for (const std::int64_t M : {1, 2, 5})
    CHECK(bytes_of_step({.M = M}) == LinkBytes{M * 4 * gathered, M * 4 * P, 0, 0});
  CHECK(bytes_of_step({.M = 2, .parameters = DType::bf16}) == LinkBytes{2 * 2 * gathered, 2 * 4 * P, 0, 0});
}

TEST_CASE("link_traffic: everything on disk, in whole blocks")
{
  const std::string tier = "disk:/tmp";
  // Parameters, two moments and gradients come and go for AdamW; but these are written before, in each pass.
  CHECK(bytes_of_step({.tier = tier}) ==
        LinkBytes{4 * gathered, 4 * P, (gathered_units + 4 * units) * block, 4 * units * block});
  // From the second pass on sums of gradients come, are added to and go again.
  CHECK(bytes_of_step({.tier = tier, .M = 3}) == LinkBytes{3 * 4 * gathered, 3 * 4 * P,
                                                           (3 * gathered_units + (4 + 2) * units) * block,
                                                           (4 + 2) * units * block});
  // In bf16 AdamW reads master weights, and writes these and parameters.
  CHECK(bytes_of_step({.tier = tier, .parameters = DType::bf16}) ==
        LinkBytes{2 * gathered, 4 * P, (gathered_units + 4 * units) * block, 5 * units * block});
}

TEST_CASE("link_traffic: optimizer on disk, the rest on the device")
{
  // Two moments and master weights come and go; what is on the device does not go to the disk.
  CHECK(bytes_of_step({.what = Offload::optimizer, .tier = "disk:/tmp"}) ==
        LinkBytes{4 * P, 4 * P, 3 * units * block, 3 * units * block});
}

TEST_CASE("link_traffic: the second gradients of a tied tensor go up too")
{
  constexpr std::int64_t tied = 512;
  for (const std::int64_t M : {1, 4}) {
    CHECK(bytes_of_step({.M = M, .exact = true}) == LinkBytes{M * 4 * gathered, M * 4 * (P + tied), 0, 0});
    CHECK(bytes_of_step({.what = Offload::gradients, .M = M, .exact = true}) ==
          LinkBytes{4 * P, M * 4 * (P + tied), 0, 0});
  }
}
