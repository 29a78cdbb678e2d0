"""Parts of lesson 13's program outside of all exercises, beside lesson 01.

    test_mesh_zero_exercises.py 13 PREPARE LESSON_01 LESSON
"""

import exercise_case


def mesh(tp, shard_ranks):
    return [f"--tp={tp}", f"--shard-ranks={shard_ranks}"]


class Lesson(exercise_case.ExerciseCase):
    def assert_steps(self, *options):
        report = self.assert_steps_of_lesson_01(4, *options)
        self.assertEqual(report["validation"], self.expected["validation"])
        for what, sent in report["traffic"].items():
            self.assertEqual(sent["bytes"], sent["formula"], what)

    def test_shards_of_divided_layers(self):
        self.assert_steps(*mesh(2, 2), "--micro-batch=2", "--sequence-parallel", "--recompute=block")

    def test_replicas_of_divided_layers(self):
        self.assert_steps(*mesh(2, 1), "--micro-batch=1")

    def test_replicas_of_shards_with_whole_parameters(self):
        self.assert_steps(*mesh(1, 2), "--zero=2", "--micro-batch=1")

    def test_replicas_of_shards_that_are_offloaded(self):
        self.assert_steps(*mesh(1, 2), "--offload=all", "--micro-batch=1")


if __name__ == "__main__":
    exercise_case.main({"13": Lesson})
