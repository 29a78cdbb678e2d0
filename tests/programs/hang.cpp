// A job that deadlocks for a chosen reason, which the watchdog has to name (tests/common/messages/watchdog/test_watchdog.py).
// And slow jobs that make progress, and one whose messages get lost.

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "common/base/activity.hpp"
#include "common/base/error.hpp"
#include "common/collectives/collectives.hpp"
#include "common/messages/carrier.hpp"
#include "common/messages/communication_queue.hpp"
#include "common/messages/program.hpp"
#include "common/program/in_turn.hpp"
#include "common/program/placement.hpp"

namespace {

using namespace rankwise;

enum class Case {
  nothing,
  skip,
  swap,
  count,
  type,
  group,
  thrown,
  handle,
  early,
  receive,
  slow,
  stopped,
  suspended,
  killed,
  left,
  refusing,
  loops,
  turn,
  sends,
  absent,
  kernel,
  polls,
  root,
  lost,
};

struct Settings {
  Case what = Case::nothing;
  double timeout_s = 3;
  std::string collectives = "ring";
  DeviceKind device = DeviceKind::cpu;
  TransportKind transport = TransportKind::automatic;
  bool dry_run = false;
};

constexpr int steps = 5, wrong_step = 3, buckets = 3;
constexpr std::int64_t elements = 1024;

/// The data of a rank in each of its steps.
struct Rank {
  const Session& session;
  const Settings& settings;
  TimeLedger& time;
  Group &world, &pair;
  CommunicationQueue& queue;
  const Tensor &values, &whole;  // (elements) f32 and i32
  std::vector<Pending> forgotten{};

  Tensor tensor(std::int64_t n = elements) const { return values.slice({0, n}); }
  /// Whether this rank makes its mistake in this step.
  bool now(int rank, int step) const { return session.rank() == rank && step == wrong_step; }
};

/// Sums up a bucket of gradients.
void bucket(Rank& rank, int number)
{
  const CollectiveLabel label(fmt::format("bucket {}", number));
  all_reduce_sum(rank.tensor(), rank.world);
}

/// The buckets of one step, with what is wrong in the way that ranks call collectives.
void make_buckets(Rank& rank, int step)
{
  const Case what = rank.settings.what;
  for (int b = 0; b < buckets; ++b) {
    if (what == Case::skip && b == 1 && rank.now(2, step)) continue;
    if (what == Case::swap && b < 2 && rank.now(1, step))
      bucket(rank, 1 - b);
    else
      bucket(rank, b);
  }
  all_reduce_sum(rank.tensor(what == Case::count && rank.now(1, step) ? elements / 2 : elements), rank.world);
  all_reduce_sum(what == Case::type && rank.now(3, step) ? rank.whole : rank.tensor(), rank.world);
  if (what == Case::root)  // so few that they may be sent before the receivers ask for them
    return broadcast(rank.tensor(16), rank.now(3, step) ? 3 : 0, rank.world);
  broadcast(rank.tensor(), 0, what == Case::group && rank.now(1, step) ? rank.pair : rank.world);
}

/// Stops all ranks, itself last, while the others wait for it; once they are continued it works for another second.
void suspend_all(Rank& rank)
{
  const auto own = static_cast<std::int64_t>(getpid());
  std::vector<std::int64_t> all(static_cast<std::size_t>(rank.session.ranks()));
  check_mpi(MPI_Allgather(&own, 1, MPI_INT64_T, all.data(), 1, MPI_INT64_T, MPI_COMM_WORLD),
            "asking for processes");
  if (rank.session.rank() != 3) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others call their next collective
  for (const std::int64_t process : all)
    if (process != own) kill(static_cast<pid_t>(process), SIGSTOP);
  std::raise(SIGSTOP);
  const auto span = rank.time.span(Work::compute, "work after a stop");
  for (int i = 0; i < 100; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

/// Does for a while what no watchdog can see.
void do_something_else()
{
  std::this_thread::sleep_for(std::chrono::seconds(20));
}

/// Mistakes in the program's own MPI calls, and deadlocks without MPI.
void use_mpi(Rank& rank, int step)
{
  const Case what = rank.settings.what;
  const int r = rank.session.rank(), next = r ^ 1;
  if (step != wrong_step) return;
  if (what == Case::loops) do_something_else();
  if (what == Case::turn)
    in_turn(rank.session, [&] {
      if (r == 1) do_something_else();
    });
  if (what == Case::sends || (what == Case::absent && r < 2)) {
    std::vector<float> rows(1 << 22);
    check_mpi(MPI_Send(rows.data(), 1 << 22, MPI_FLOAT, next, 0, MPI_COMM_WORLD), "sending rows");
    check_mpi(MPI_Recv(rows.data(), 1 << 22, MPI_FLOAT, next, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
              "receiving rows");
  }
  if (what == Case::lost && r == 2)
    check_mpi(MPI_Send(&r, 1, MPI_INT, next, 0, MPI_COMM_WORLD), "sending to nobody");
  if (what == Case::kernel && r == 3) {
    const Working working;
    std::this_thread::sleep_for(std::chrono::duration<double>(3 * rank.settings.timeout_s));
  }
  if (what == Case::polls)
    for (const Stopwatch clock;;) {
      int more = clock.seconds() < 3 * rank.settings.timeout_s;  // by the clock of rank 0, so that all do as many
      check_mpi(MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD), "doing something");
      if (!more) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

/// Mistakes of a rank outside of messages.
void misbehave(Rank& rank, int step)
{
  const auto wrong = [&](Case what, int who) { return rank.settings.what == what && rank.now(who, step); };
  if (wrong(Case::thrown, 1)) throw Error("thrown on purpose");
  if (wrong(Case::receive, 1)) {
    const CollectiveLabel label("rows of step 3");
    rank.world.transport().receive(rank.tensor(), 3);
  }
  if (wrong(Case::killed, 2)) std::raise(SIGKILL);
  if (wrong(Case::stopped, 0)) std::raise(SIGSTOP);
  if (rank.settings.what == Case::suspended && step == wrong_step) suspend_all(rank);
  if (wrong(Case::left, 2)) _exit(0);
  if (wrong(Case::slow, 3)) {
    const auto span = rank.time.span(Work::compute, "a long computation");
    do_something_else();
  }
  Pending handle = rank.queue.start("a sum beside the rest", [&](Group& group) { barrier(group); });
  if (wrong(Case::handle, 1))
    rank.forgotten.push_back(std::move(handle));
  else
    handle.wait();
}

int run(const Session& session, const Settings& settings)
{
  if (settings.dry_run) return exit_success;
  MemoryLedger memory;
  TrafficLedger traffic;
  TimeLedger time;
  flight_recorder().follow(&time);
  const auto device = make_device(settings.device);
  const auto stream = device->make_stream();
  GroupSetup setup{{device.get(), &memory}, stream.get(), &traffic};
  setup.nccl = choose_carrier(settings.transport, settings.device, false).nccl;
  for (const auto& [name, algorithm] : algorithms())
    if (name == settings.collectives) setup.algorithm = algorithm;
  Group world("world", Communicator::world(), setup);
  Group pair("pair", world.communicator().split(session.rank() / 2, session.rank()), setup);
  Group beside("beside", Communicator::world(), setup);
  CommunicationQueue queue(beside, time);

  const Buffer values(setup.memory, Category::workspace, DType::f32, {elements}, "values");
  const Buffer whole(setup.memory, Category::workspace, DType::i32, {elements}, "whole numbers");
  stream->zero(values.tensor());
  stream->zero(whole.tensor());
  Rank rank{session, settings, time, world, pair, queue, values.tensor(), whole.tensor()};
  for (int step = 0; step < steps; ++step) {
    if (settings.what == Case::early && rank.now(2, step + 1)) break;
    misbehave(rank, step);
    use_mpi(rank, step);
    make_buckets(rank, step);
  }
  if (!rank.forgotten.empty()) do_something_else();
  flight_recorder().follow(nullptr);
  return exit_success;
}

}  // namespace

int main(int argc, char** argv)
{
  Settings settings;
  OptionTable options("hang", "Waits in vain.");
  options.add_choice<Case>("Hanging", "case", settings.what,
                           {{"nothing", Case::nothing},     {"skip", Case::skip},     {"swap", Case::swap},
                            {"count", Case::count},         {"type", Case::type},     {"group", Case::group},
                            {"throw", Case::thrown},        {"handle", Case::handle}, {"early", Case::early},
                            {"receive", Case::receive},     {"slow", Case::slow},     {"stopped", Case::stopped},
                            {"suspended", Case::suspended}, {"killed", Case::killed}, {"left", Case::left},
                            {"refusing", Case::refusing},   {"loops", Case::loops},   {"turn", Case::turn},
                            {"sends", Case::sends},         {"absent", Case::absent}, {"kernel", Case::kernel},
                            {"polls", Case::polls},         {"root", Case::root},     {"lost", Case::lost}},
                           "what goes wrong");
  options.add("Hanging", "timeout", settings.timeout_s, "seconds after which the watchdog looks");
  options.add("Hanging", "dry-run", settings.dry_run, "do nothing");
  options.add("Hanging", "collectives", settings.collectives, "by which algorithm");
  declare_device(options, settings.device);
  declare_transport(options, "Hanging", settings.transport);
  return run_program(
      argc, argv, options,
      [&](const Session& session) {
        if (settings.what == Case::refusing && session.rank() == 1) do_something_else();
      },
      [&](const Session& session) { return run(session, settings); });
}
