"""For problems of LiveCodeBench v5, by their `extra_info.index`: a program that is right, one that is not, and how the
second fails."""

from typing import NamedTuple

from coa.grading.programs import Why


class Pair(NamedTuple):
    right: str
    wrong: str
    why: Why = Why.WRONG


STDIN = {
    # The first place where two words differ.
    "abc374_b": Pair(
        """
from itertools import zip_longest
s, t = input(), input()
print(next((i for i, (a, b) in enumerate(zip_longest(s, t), 1) if a != b), 0))
""",
        """
s, t = input(), input()
print(next((i for i, (a, b) in enumerate(zip(s, t), 1) if a != b), 0))
""",
    ),
    "abc374_a": Pair("print('Yes' if input().endswith('san') else 'No')", "print('Yes')"),
    # The length of a round trip, with a tolerance.
    "abc375_b": Pair(
        """
points = [(0, 0)] + [tuple(map(int, input().split())) for _ in range(int(input()))] + [(0, 0)]
print(sum(math.dist(a, b) for a, b in zip(points, points[1:])))
""",
        """
points = [(0, 0)] + [tuple(map(int, input().split())) for _ in range(int(input()))]
print(sum(math.dist(a, b) for a, b in zip(points, points[1:])))
""",
    ),
    "abc375_a": Pair(
        "n, s = int(input()), input()\nprint(sum(s[i:i + 3] == '#.#' for i in range(n)))",
        "n, s = int(input()), input()\nprint(s.count('#.#'))",
    ),
    "abc376_a": Pair(
        """
n, c = map(int, input().split())
last, got = -c, 0
for t in map(int, input().split()):
    if t - last >= c:
        last, got = t, got + 1
print(got)
""",
        """
n, c = map(int, input().split())
last, got = -c, 0
for t in map(int, input().split()):
    if t - last > c:
        last, got = t, got + 1
print(got)
""",
    ),
    # Free rows times free columns.
    "abc377_b": Pair(
        """
import sys
rows = sys.stdin.read().split()
def free(lines):
    return sum('#' not in line for line in lines)
print(free(rows) * free(zip(*rows)))
""",
        "import sys\nprint(sum(line.count('.') for line in sys.stdin))",
    ),
    "abc377_a": Pair("print(['No', 'Yes'][sorted(input()) == list('ABC')])", "print(['No', 'Yes'][input() == 'ABC'])"),
    "abc378_b": Pair(
        """
plan = [tuple(map(int, input().split())) for _ in range(int(input()))]
for _ in range(int(input())):
    kind, day = map(int, input().split())
    q, r = plan[kind - 1]
    print(day + (r - day) % q)
""",
        """
plan = [tuple(map(int, input().split())) for _ in range(int(input()))]
for _ in range(int(input())):
    kind, day = map(int, input().split())
    q, r = plan[kind]
    print(day + (r - day) % q)
""",
        Why.ERROR,
    ),
    "abc378_a": Pair(
        "balls = input().split()\nprint(sum(n // 2 for n in Counter(balls).values()))",
        "balls = input().split()\nprint(4 - len(set(balls)))",
    ),
    "abc379_b": Pair(
        "n, k = map(int, input().split())\nprint(input().count('O' * k))",
        "n, k = map(int, input().split())\nprint(input().count('O') // k)",
    ),
    "abc380_a": Pair("print('Yes' if ''.join(sorted(input())) == '122333' else 'No')", "print('No')"),
    "abc380_b": Pair(
        "print(*map(len, input().strip('|').split('|')))",
        "print(*map(len, input().split('|')))",
    ),
    "abc381_a": Pair(
        "n, s = int(input()), input()\nprint('Yes' if s == '1' * (n // 2) + '/' + '2' * (n // 2) else 'No')",
        "n, s = int(input()), input()\nwhile s[0] == '1':\n    pass\nprint('Yes')",
        Why.TIME,
    ),
    "abc381_b": Pair(
        "s = input()\nprint('Yes' if s[::2] == s[1::2] and len(set(s)) * 2 == len(s) else 'No')",
        "s = input()\nprint('Yes' if s[::2] == s[1::2] else 'No')",
    ),
    "abc382_a": Pair(
        "n, d = map(int, input().split())\nprint(input().count('.') + d)",
        "n, d = map(int, input().split())\nprint(n - d)",
    ),
    "abc382_b": Pair(
        """
n, d = map(int, input().split())
boxes = list(input())
for i in reversed(range(n)):
    if d and boxes[i] == '@':
        boxes[i], d = '.', d - 1
print(*boxes, sep='')
""",
        "n, d = map(int, input().split())\nprint(input().replace('@', '.', d))",
    ),
    "abc383_a": Pair(
        """
water = now = 0
for _ in range(int(input())):
    t, v = map(int, input().split())
    water, now = max(0, water - (t - now)) + v, t
print(water)
""",
        """
water = now = 0
for _ in range(int(input())):
    t, v = map(int, input().split())
    water, now = water - (t - now) + v, t
print(water)
""",
    ),
    "abc384_a": Pair(
        "_, a, b = input().split()\nprint(''.join(c if c == a else b for c in input()))",
        "_, a, b = input().split()\nprint(''.join(b if c == a else c for c in input()))",
    ),
    "abc385_a": Pair(
        "a, b, c = sorted(map(int, input().split()))\nprint('Yes' if a + b == c or a == b == c else 'No')",
        "a, b, c = map(int, input().split())\nprint('Yes' if a + b == c else 'No')",
    ),
    "abc386_b": Pair("print(len(input().replace('00', '0')))", "print(len(input().replace('0', '')))"),
}

FUNCTIONAL = {
    "3610": Pair(
        """
class Solution:
    def findXSum(self, nums: List[int], k: int, x: int) -> List[int]:
        def worth(part):
            best = sorted(Counter(part).items(), key=lambda item: (-item[1], -item[0]))[:x]
            return sum(value * count for value, count in best)
        return [worth(nums[i:i + k]) for i in range(len(nums) - k + 1)]
""",
        """
class Solution:
    def findXSum(self, nums: List[int], k: int, x: int) -> List[int]:
        return [sum(nums[i:i + k]) for i in range(len(nums) - k)]
""",
    ),
    # A bare function instead of the starter code's class.
    "3636": Pair(
        "def isBalanced(num: str) -> bool:\n    return sum(map(int, num[::2])) == sum(map(int, num[1::2]))",
        "def isBalanced(num: str) -> bool:\n    return sum(map(int, num[::2])) > sum(map(int, num[1::2]))",
    ),
    "3612": Pair(
        """
class Solution:
    def hasIncreasingSubarrays(self, nums: List[int], k: int) -> bool:
        def grows(i):
            return all(a < b for a, b in pairwise(nums[i:i + k]))
        return any(grows(i) and grows(i + k) for i in range(len(nums) - 2 * k + 1))
""",
        """
class Solution:
    def hasIncreasingSubarrays(self, nums: List[int], k: int) -> bool:
        return all(a <= b for a, b in pairwise(nums))
""",
    ),
    # A zero splits the rest into halves that differ by no more than one.
    "3616": Pair(
        """
class Solution:
    def countValidSelections(self, nums: List[int]) -> int:
        total, left, found = sum(nums), 0, 0
        for value in nums:
            left += value
            if not value:
                found += max(0, 2 - abs(2 * left - total))
        return found
""",
        """
class Solution:
    def countValidSelections(self, nums: List[int]) -> int:
        return nums.count(0)
""",
    ),
    "3639": Pair(
        """
class Solution:
    def isZeroArray(self, nums: List[int], queries: List[List[int]]) -> bool:
        change = [0] * (len(nums) + 1)
        for first, last in queries:
            change[first] += 1
            change[last + 1] -= 1
        return all(value <= covered for value, covered in zip(nums, accumulate(change)))
""",
        """
class Solution:
    def isZeroArray(self, nums: List[int], queries: List[List[int]]) -> bool:
        return sum(nums) == sum(last - first + 1 for first, last in queries) + 4
""",
    ),
    "3644": Pair(
        """
class Solution:
    def minimumSumSubarray(self, nums: List[int], l: int, r: int) -> int:
        n = len(nums)
        sums = [sum(nums[i:i + k]) for k in range(l, r + 1) for i in range(n - k + 1)]
        return min((s for s in sums if s > 0), default=-1)
""",
        """
class Solution:
    def minimumSumSubarray(self, nums: List[int], l: int, r: int) -> int:
        return -1
""",
    ),
    "3605": Pair(
        """
class Solution:
    def minBitwiseArray(self, nums: List[int]) -> List[int]:
        return [next((a for a in range(n) if a | (a + 1) == n), -1) for n in nums]
""",
        """
class Solution:
    def minBitwiseArray(self, nums: List[int]) -> List[int]:
        return [n - 1 for n in nums]
""",
    ),
    "3617": Pair(
        """
class Solution:
    def possibleStringCount(self, word: str) -> int:
        return 1 + sum(a == b for a, b in zip(word, word[1:]))
""",
        """
class Solution:
    def possibleStringCount(self, word: str) -> int:
        return sum(a == b for a, b in zip(word, word[1:]))
""",
    ),
    "3625": Pair(
        """
class Solution:
    def canAliceWin(self, n: int) -> bool:
        turn, stones = 0, 10
        while n >= stones:
            n, stones, turn = n - stones, stones - 1, turn + 1
        return turn % 2 == 1
""",
        """
class Solution:
    def canAliceWin(self, n: int) -> bool:
        return self.canAliceWin(n)
""",
        Why.ERROR,
    ),
    "3676": Pair(
        """
class Solution:
    def smallestNumber(self, n: int) -> int:
        return (1 << n.bit_length()) - 1
""",
        """
class Solution:
    def smallestNumber(self, n: int) -> int:
        return 1 << n.bit_length()
""",
    ),
    "3651": Pair(
        """
class Solution:
    def constructTransformedArray(self, nums: List[int]) -> List[int]:
        return [nums[(i + step) % len(nums)] for i, step in enumerate(nums)]
""",
        """
class Solution:
    def constructTransformedArray(self, nums: List[int]) -> List[int]:
        return [nums[(i - step) % len(nums)] for i, step in enumerate(nums)]
""",
    ),
    "3621": Pair(
        """
class Solution:
    def minOperations(self, nums: List[int], k: int) -> int:
        return -1 if min(nums) < k else len(set(nums) - {k})
""",
        """
class Solution:
    def minOperations(self, nums: List[int], k: int) -> int:
        return len(nums) - k
""",
    ),
    "3632": Pair(
        """
class Solution:
    def buttonWithLongestTime(self, events: List[List[int]]) -> int:
        times = [events[0][1]] + [b[1] - a[1] for a, b in pairwise(events)]
        return min((-time, button) for time, (button, _) in zip(times, events))[1]
""",
        """
class Solution:
    def buttonWithLongestTime(self, events: List[List[int]]) -> int:
        return min(button for button, _ in events)
""",
    ),
    "3656": Pair(
        """
class Solution:
    def minimumOperations(self, nums: List[int]) -> int:
        done = 0
        while len(set(nums)) < len(nums):
            nums, done = nums[3:], done + 1
        return done
""",
        """
class Solution:
    def minimumOperations(self, nums: List[int]) -> int:
        return len(nums) // 3
""",
    ),
}
