// The most base pairs of an RNA, by dynamic programming.
#include "program.h"

int table[5500][5500];
char bases[5500];

static inline int larger(int a, int b)
{
    return a >= b ? a : b;
}

void EXPORT(init)(int n)
{
    for (int i = 0; i < n; i++) {
        bases[i] = (char)((i + 1) % 4);
        for (int j = 0; j < n; j++)
            table[i][j] = 0;
    }
}

void EXPORT(run)(int n)
{
    for (int i = n - 1; i >= 0; i--)
        for (int j = i + 1; j < n; j++) {
            if (j - 1 >= 0)
                table[i][j] = larger(table[i][j], table[i][j - 1]);
            if (i + 1 < n)
                table[i][j] = larger(table[i][j], table[i + 1][j]);
            if (j - 1 >= 0 && i + 1 < n) {
                if (i < j - 1)
                    table[i][j] = larger(table[i][j], table[i + 1][j - 1] + (bases[i] + bases[j] == 3 ? 1 : 0));
                else
                    table[i][j] = larger(table[i][j], table[i + 1][j - 1]);
            }
            for (int k = i + 1; k < j; k++)
                table[i][j] = larger(table[i][j], table[i][k] + table[k + 1][j]);
        }
}
