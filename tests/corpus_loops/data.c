// Loops whose inner loops end, or whose values are chosen, because of data.
// run: escape(7, 5, 20)
// run: escape(3, 4, 0)
// run: collatz(12)
// run: collatz_if(12)
// run: find_each(9)
// run: find_each(0)
// run: bisect_each(10)
// run: newton(9)
// run: nearest(8, 5, 3)
// run: nearest(3, 1, 4)
// run: longest_run(9, 7)
// run: first_negative_of_each(8)
// run: clamp(15)
// run: threshold(15, 3)
// run: either(14)
// run: both(14)
// run: nested_choice(14)
// run: choice_of_rows(7, 6)
// run: choice_of_rows(7, 0)
// run: averages(9, 4)
// run: skip_some(15)
// run: chosen_sum(13)
// run: cases(14)
// run: cases_by_counter(8, 5)
// run: until_either(9)
// run: loop_in_loop(7)
// run: changed_while_searched(9)
// run: result_of_search(9)
// run: halves(10)
// run: assign_and_count(2, 9, 4, 3)
// run: condition_of_what_changes(11)
#include "loops.h"
int steps[N][N], words[N], others[N], marks[N], members[N];
u8 bytes[N][N];
double a[N], b[N], A[N][N], B[N][N], C[N][N];

void EXPORT(init)(void) {
  for (int i = 0; i < N; i++) {
    words[i] = (i * 7919 + 13) % 101 - 30;
    others[i] = 3 * i + 1;
    marks[i] = members[i] = i;
    a[i] = sample(i, 1) * 4 - 2;
    b[i] = sample(i, 2) * 3 - 1;
    for (int j = 0; j < N; j++) {
      steps[i][j] = (i * 31 + j * 17) % 23 - 5;
      bytes[i][j] = i * 77 + j * 31;
      A[i][j] = sample(i * N + j, 3) - 0.5;
      B[i][j] = sample(i * N + j, 4);
      C[i][j] = i - j;
    }
  }
}

void EXPORT(escape)(int w, int h, int most) {
  for (int i = 0; i < h; i++)
    for (int j = 0; j < w; j++) {
      double cr = 3.0 * j / w - 2.0, ci = 2.0 * i / h - 1.0, zr = 0, zi = 0;
      int k = 0;
      while (k < most && zr * zr + zi * zi < 4.0) {
        double next = zr * zr - zi * zi + cr;
        zi = 2 * zr * zi + ci;
        zr = next;
        k++;
      }
      steps[i][j] = k;
    }
}

void EXPORT(collatz)(int n) {
  for (int i = 0; i < n; i++) {
    u32 x = i + 1;
    int count = 0;
    for (; x != 1; count++) x = x & 1 ? 3 * x + 1 : x / 2;
    words[i] = count;
  }
}

void EXPORT(collatz_if)(int n) {
  for (int i = 0; i < n; i++) {
    u32 x = others[i] % 7;
    int count = -1;
    if (x > 0)
      for (count = 0; x != 1; count++) x = x & 1 ? 3 * x + 1 : x / 2;
    words[i] = count;
  }
}

void EXPORT(find_each)(int n) {
  for (int i = 0; i < n; i++) {
    int k = 0;
    while (k < n && words[k] != steps[i][i]) k++;
    marks[i] = k;
  }
}

void EXPORT(bisect_each)(int n) {
  for (int i = 0; i < n; i++) {
    int low = 0, high = 1000;
    while (low < high) {
      int middle = (low + high) / 2;
      if (middle * middle < others[i] * 50)
        low = middle + 1;
      else
        high = middle;
    }
    marks[i] = low;
  }
}

void EXPORT(newton)(int n) {
  for (int i = 0; i < n; i++) {
    double x = b[i] + 2, y = x;
    do {
      y = x;
      x = 0.5 * (x + (a[i] + 3) / x);
    } while (x < y);
    b[i] = y;
  }
}

void EXPORT(nearest)(int n, int clusters, int dimensions) {
  for (int i = 0; i < n; i++) {
    double best = 1e300;
    int chosen = 0;
    for (int c = 0; c < clusters; c++) {
      double distance = 0;
      for (int j = 0; j < dimensions; j++) distance += (A[i][j] - B[c][j]) * (A[i][j] - B[c][j]);
      if (distance < best) {
        best = distance;
        chosen = c;
      }
    }
    words[i] = chosen;
  }
}

void EXPORT(longest_run)(int n, int m) {
  for (int i = 0; i < n; i++) {
    int longest = 0;
    for (int j = 0; j < m; j++) {
      int k = j;
      while (k < m && steps[i][k] > 0) k++;
      if (k - j > longest) longest = k - j;
    }
    words[i] = longest;
  }
}

void EXPORT(first_negative_of_each)(int n) {
  for (int i = 0; i < n; i++) {
    int found = -1;
    for (int j = 0; j < n; j++)
      if (A[i][j] < 0) {
        found = j;
        break;
      }
    words[i] = found;
  }
}

void EXPORT(clamp)(int n) {
  for (int i = 0; i < n; i++) {
    if (a[i] > 1) a[i] = 1;
    if (a[i] < -1) a[i] = -1;
  }
}

void EXPORT(threshold)(int n, int limit) {
  for (int i = 0; i < n; i++)
    if (words[i] > limit)
      others[i] = words[i] * 2;
    else
      marks[i] -= limit;
}

void EXPORT(either)(int n) {
  for (int i = 0; i < n; i++)
    if (words[i] > 10 || a[i] < 0) b[i] = a[i] / words[i];
}

void EXPORT(both)(int n) {
  for (int i = 0; i < n; i++)
    if (words[i] > 0 && a[i] < 1)
      b[i] += a[i];
    else
      b[i] = -b[i];
}

void EXPORT(nested_choice)(int n) {
  for (int i = 0; i < n; i++) {
    int x = words[i];
    if (x > 0) {
      if (i > 3) {
        marks[i] = x;
        if (x > 30) others[i] = 1;
      } else
        x = 7;
    } else if (i & 1)
      marks[i] = -x;
    words[i] = x + 1;
  }
}

void EXPORT(choice_of_rows)(int n, int m) {
  for (int i = 0; i < n; i++)
    if (words[i] > 0)
      for (int j = 0; j < m; j++) C[i][j] = A[i][j] / words[i];
}

void EXPORT(averages)(int n, int m) {
  for (int i = 0; i < n; i++) {
    double sum = 0;
    if (marks[i] & 1)
      for (int j = 0; j < m; j++) sum += A[i][j];
    else
      for (int j = m - 1; j >= 0; j--) sum -= B[i][j];
    a[i] = sum / m;
  }
}

void EXPORT(skip_some)(int n) {
  for (int i = 0; i < n; i++) {
    if (words[i] < 0) continue;
    for (int j = 0; j < n; j++) C[i][j] += words[i];
    others[i] = 0;
  }
}

double EXPORT(chosen_sum)(int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) {
    b[i] *= 2;
    if (b[i] > 0) sum += b[i];
  }
  return sum;
}

void EXPORT(cases)(int n) {
  for (int i = 0; i < n; i++) switch (words[i] & 7) {
      case 0: marks[i] = 5; break;
      case 1: a[i] = 1;
      case 2: others[i] = 3; break;
      case 5: marks[i] += others[i]; break;
      default: b[i] = 0;
    }
}

void EXPORT(cases_by_counter)(int n, int m) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++) switch (i) {
        case 0: C[i][j] = 1; break;
        case 1: C[i][j] = A[i][j]; break;
        case 3: C[i][j] += B[j][i];
        default: A[i][j] = j;
      }
}

void EXPORT(until_either)(int n) {
  for (int i = 0; i < n; i++) {
    int j = 0, k = n - 1, code = 0;
    for (;;) {
      if (j >= k) { code = 1; break; }
      if (steps[i][j] < 0) { code = 2; break; }
      if (steps[i][k] == 3) { code = 3; break; }
      j++;
      k--;
    }
    marks[i] = code * 100 + j;
  }
}

void EXPORT(loop_in_loop)(int n) {
  for (int i = 0; i < n; i++) {
    double x = b[i];
    int count = 0;
    while (x < 20 && count < 30) {
      for (int j = 0; j < 3; j++) x += B[i][j];
      while (x > 9 && x < 10) x *= 1.5;
      count++;
    }
    a[i] = x;
    marks[i] = count;
  }
}

void EXPORT(changed_while_searched)(int n) {
  for (int i = 0; i < n; i++) {
    int k = 0;
    while (k < n && words[k] < 40) k++;
    words[i] = k * 10;
  }
}

int EXPORT(result_of_search)(int n) {
  int last = 0;
  for (int i = 0; i < n; i++) {
    int k = 0;
    while (k < n && words[k] != others[i]) k++;
    marks[i] = last = k;
  }
  return last;
}

void EXPORT(halves)(int n) {
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) {
      int x = bytes[i][j], count = 0;
      while (x) {
        x &= x - 1;
        count++;
      }
      bytes[i][j] = count;
    }
}

void EXPORT(assign_and_count)(int times, int n, int clusters, int dimensions) {
  for (int t = 0; t < times; t++) {
    for (int i = 0; i < n; i++) {
      double best = 1e300;
      int chosen = 0;
      for (int c = 0; c < clusters; c++) {
        double distance = 0;
        for (int j = 0; j < dimensions; j++) distance += (A[i][j] - B[c][j]) * (A[i][j] - B[c][j]);
        if (distance < best) {
          best = distance;
          chosen = c;
        }
      }
      words[i] = chosen;
    }
    for (int c = 0; c < clusters; c++) {
      members[c] = 0;
      for (int j = 0; j < dimensions; j++) C[c][j] = 0;
    }
    for (int i = 0; i < n; i++) {
      members[words[i]]++;
      for (int j = 0; j < dimensions; j++) C[words[i]][j] += A[i][j];
    }
    for (int c = 0; c < clusters; c++)
      if (members[c] > 0)
        for (int j = 0; j < dimensions; j++) B[c][j] = C[c][j] / members[c];
  }
}

void EXPORT(condition_of_what_changes)(int n) {
  for (int i = 0; i < n; i++)
    if (a[i] > 0) {
      for (int j = 0; j < 4; j++) a[i] -= B[i][j];
      if (a[i] < 0) marks[i] = 1;
    }
}
