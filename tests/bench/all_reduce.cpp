// Times all-reduce by several algorithms beside the MPI library's own and beside copying, in turns; prints JSON.
//
//   mpirun -np 2 build/tests/all_reduce --least-bytes=4KiB --most-bytes=256MiB --factor=4 --rounds=7
//
// scripts/bench/bench.py --case=collectives runs it and makes tables of what it prints.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/collectives/collectives.hpp"
#include "common/messages/program.hpp"
#include "common/program/time_ledger.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options {
  Bytes least{4 << 10};
  Bytes most{256 << 20};
  std::int64_t factor = 4;
  int rounds = 7;
  double least_turn_s = 0.01;
  OptionTable table{"all_reduce", "f32 all-reduce beside the MPI library's own, inside one node; prints JSON"};

  Options()
  {
    table.add("vectors", "least-bytes", least, "size of the smallest vector");
    table.add("vectors", "most-bytes", most, "no vector is larger");
    table.add("vectors", "factor", factor, "each vector is so many times as large as the one before");
    table.add("measurement", "rounds", rounds, "turns that each way of summing gets");
    table.add("measurement", "least-turn", least_turn_s, "seconds; shorter calls are made several times a turn");
  }
};

/// Refuses what cannot be done.
void check(const Options& options)
{
  if (options.least.value < 4 || options.least.value % 4 != 0 || options.most.value < options.least.value)
    throw UserError(
        fmt::format("There are no f32 vectors from {} to {} bytes.", options.least.value, options.most.value),
        "Use --least-bytes=4 or another multiple of 4, and --most-bytes no smaller than that.");
  if (options.factor < 2) throw UserError("--factor is too small.", "Use --factor=2 or more.");
  if (options.rounds < 1) throw UserError("--rounds is too small.", "Use --rounds=1 or more.");
  if (!(0 <= options.least_turn_s && options.least_turn_s <= 10))
    throw UserError(fmt::format("--least-turn={} is no time that a turn can last.", options.least_turn_s),
                    "Use 0 to 10 seconds.");
}

// ---- What is compared ------------------------------------------------------------------------------------------------

/// Something that is done with a vector on each rank.
struct Contestant {
  std::string name;
  Tensor buffer;  // the largest vector
  bool sums;      // else it copies
  std::function<void(const Tensor& values)> call;
};

/// All contestants with what they need. Ranks make and destroy it together.
class Contest {
 public:
  /// @param ranks       outlives the contest.
  /// @param most_bytes  of the largest vector.
  Contest(const Communicator& ranks, std::int64_t most_bytes) : ranks_(ranks), n_(most_bytes / bytes_of(DType::f32))
  {
    add("ring", Algorithm::ring);
    add("halving", Algorithm::halving);
    add("tree", Algorithm::tree);
    Group& shared = add("shared-other", Algorithm::shared);
    in_window_ = Buffer(shared.often_reduced(), Category::gradients, DType::f32, {n_}, "values in shared memory");
    contestants_.push_back({"shared", in_window_.tensor(), true, contestants_.back().call});
    contestants_.push_back({"library", own_.tensor(), true, [this](const Tensor& values) {
                              check_mpi(
                                  MPI_Allreduce(MPI_IN_PLACE, values.raw(), static_cast<int>(values.elements()),
                                                MPI_FLOAT, MPI_SUM, ranks_.handle()),
                                  "summing with the library");
                            }});
    contestants_.push_back({"copy", own_.tensor(), false, [this](const Tensor& values) {
                              std::memcpy(copy_.tensor().raw(), values.raw(),
                                          static_cast<std::size_t>(values.bytes()));
                            }});
  }

  Contest(const Contest&) = delete;
  Contest& operator=(const Contest&) = delete;

  /// Those that can be compared, in the order of their turns.
  const std::vector<Contestant>& contestants() const { return contestants_; }
  /// The ranks that take part.
  const Communicator& ranks() const { return ranks_; }

 private:
  /// A contestant that sums by an algorithm of this project, in memory of its own.
  Group& add(const std::string& name, Algorithm algorithm)
  {
    GroupSetup setup{.memory = memory_, .stream = stream_.get(), .traffic = &traffic_, .algorithm = algorithm};
    Group& group = *groups_.emplace_back(std::make_unique<Group>(name, ranks_.split(0, ranks_.rank()), setup));
    contestants_.push_back(
        {name, own_.tensor(), true, [&group](const Tensor& values) { all_reduce_sum(values, group); }});
    return group;
  }

  const Communicator& ranks_;
  std::int64_t n_;
  MemoryLedger ledger_;
  TrafficLedger traffic_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream();
  DeviceMemory memory_{device_.get(), &ledger_};
  Buffer own_{memory_, Category::gradients, DType::f32, {n_}, "values"};
  Buffer copy_{memory_, Category::workspace, DType::f32, {n_}, "copy"};
  std::vector<std::unique_ptr<Group>> groups_;
  Buffer in_window_;
  std::vector<Contestant> contestants_;
};

// ---- Measurements ----------------------------------------------------------------------------------------------------

/// The time of the slowest rank.
double largest(double own, const Communicator& ranks)
{
  double result = own;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &result, 1, MPI_DOUBLE, MPI_MAX, ranks.handle()),
            "asking the slowest rank");
  return result;
}

/// Ends the job if a contestant does not sum: small whole numbers, which differ by rank and by index, have exact sums.
void check_sum(const Contestant& contestant, const Tensor& values, const Communicator& ranks)
{
  const std::span<float> x = values.span<float>();
  const int N = ranks.ranks(), r = ranks.rank();
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(r + 1) * static_cast<float>(i % 64 + 1);
  contestant.call(values);
  std::int64_t wrong = 0;
  const auto sum_of_ranks = static_cast<float>(N * (N + 1) / 2);
  for (std::size_t i = 0; i < x.size(); ++i) wrong += x[i] != sum_of_ranks * static_cast<float>(i % 64 + 1);
  rankwise::check(wrong == 0, fmt::format("{} of {} sums of {} are wrong", wrong, x.size(), contestant.name));
}

/// Seconds of one of @p calls calls, which all ranks begin together, at the slowest rank.
double time_turn(const Contestant& contestant, const Tensor& values, std::int64_t calls, const Communicator& ranks)
{
  check_mpi(MPI_Barrier(ranks.handle()), "beginning together");
  const Stopwatch clock;
  for (std::int64_t i = 0; i < calls; ++i) contestant.call(values);
  return largest(clock.seconds(), ranks) / static_cast<double>(calls);
}

/// All rounds of one size: in each, every contestant has its turn. Seconds of a call by name.
nlohmann::json measure_size(const Contest& contest, std::int64_t bytes, const Options& options)
{
  const std::vector<Contestant>& contestants = contest.contestants();
  const auto vector_of = [&](std::size_t i) {
    return contestants[i].buffer.slice({0, bytes / bytes_of(DType::f32)});
  };
  std::vector<double> best_s(contestants.size());  // of a call so far; the same on all ranks
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    if (contestants[i].sums) check_sum(contestants[i], vector_of(i), contest.ranks());
    std::memset(vector_of(i).raw(), 0, static_cast<std::size_t>(bytes));  // its sum stays zero, however often
    best_s[i] = time_turn(contestants[i], vector_of(i), 1, contest.ranks());
  }
  nlohmann::json rounds = nlohmann::json::array();
  for (int round = -1; round < options.rounds; ++round) {  // what is measured in round -1 is not kept
    nlohmann::json seconds;
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      const auto calls = std::max<std::int64_t>(1, std::llround(options.least_turn_s / best_s[i]));
      const double call_s = time_turn(contestants[i], vector_of(i), calls, contest.ranks());
      best_s[i] = std::min(best_s[i], call_s);
      seconds[contestants[i].name] = call_s;
    }
    if (round >= 0) rounds.push_back(seconds);
  }
  return {{"bytes", bytes}, {"rounds", rounds}};
}

/// As "Open MPI v4.1.4".
std::string library_name()
{
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, ' ');
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "asking for the library's name");
  text.resize(static_cast<std::size_t>(length));
  return text.substr(0, text.find_first_of(",\n"));
}

int run(const Session& session, const Options& options)
{
  const Communicator world = Communicator::world();
  const Contest contest(world, options.most.value);
  nlohmann::json json{{"library", library_name()}, {"ranks", session.ranks()}, {"sizes", nlohmann::json::array()}};
  for (std::int64_t bytes = options.least.value; bytes <= options.most.value; bytes *= options.factor)
    json["sizes"].push_back(measure_size(contest, bytes, options));
  if (session.rank() == 0) fmt::print("{}\n", json.dump(1));
  return exit_success;
}

}  // namespace
}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  Options options;
  return run_program(
      argc, argv, options.table, [&](const Session&) { check(options); },
      [&](Session& session) { return run(session, options); });
}
